"""`megarl drift budget` on the embedded engine: planted causes take the share that they have."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engines.simulated import simulated_server
from tests.forked_runs import megarl
from tests.runs import RECIPE, REPOSITORY, wait_until

SIZES = [
    "model.init_from=tests/data/base",
    "rl.prompts_per_step=4",
    "rl.samples_per_prompt=8",
    "rl.micro_batch_size=32",
    "rl.optimizer.warmup_steps=0",
]


def budget_of(folder: Path, *arguments: str) -> dict[str, Any]:
    """What the command writes of 24 responses, unless they are asked for otherwise."""
    file = folder / "budget.json"
    told = [*SIZES, f"output_dir={folder / 'run'}", "--responses", "24", "--json", str(file), *arguments]
    ran = megarl("drift", "budget", RECIPE, *told, timeout_s=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    assert all(part["name"] in ran.stdout for part in found["parts"]), ran.stdout
    assert "…" not in ran.stdout
    assert not (folder / "run").exists()
    return found


def sizes(found: dict[str, Any], measure: str = "k3") -> dict[str, float]:
    return {part["name"]: part[measure] for part in found["parts"]}


def test_without_causes_the_kernel_is_the_whole(tmp_path: Path) -> None:
    found = budget_of(tmp_path)
    assert list(sizes(found)) == ["kernel"]
    assert sizes(found)["kernel"] == found["total"]["k3"] > 0
    # the floor of fp32, a few roundings
    assert found["total"]["abs_mean"] < 1e-5
    assert [floor["name"] for floor in found["floors"]] == ["floor, padded", "floor, packed", "floor, engine"]
    assert all(floor["abs_mean"] <= found["total"]["abs_mean"] for floor in found["floors"])
    assert len(found["absent"]) == 2


@pytest.mark.parametrize(
    ("planted", "largest"),
    [
        (["precision.dtype=bf16", "rl.optimizer.lr=1e-7", "--updates", "1"], "precision, trainer"),
        (
            ["precision.dtype=bf16", "precision.fp8.recipe=blockwise", "precision.fp8.emulation=true"],
            "quantisation, trainer",
        ),
        # beyond a bound that would end a run
        (
            ["precision.dtype=bf16", "rl.optimizer.lr=1e-2", "drift.stop={abs_mean: 1e-9}", "--updates", "2"],
            "staleness",
        ),
    ],
)
def test_the_planted_cause_has_the_largest_share(tmp_path: Path, planted: list[str], largest: str) -> None:
    """Its share is more than half, and each part is the difference of two scorings on the way: their means bound it."""
    found = budget_of(tmp_path, *planted)
    k3 = sizes(found)
    assert max(k3, key=lambda name: k3[name]) == largest
    assert k3[largest] > 0.5 * found["total"]["k3"]
    # the parts' log-ratios add up to the total's on every token
    assert found["total"]["abs_mean"] <= sum(sizes(found, "abs_mean").values()) + 1e-12
    assert {part["tokens"] for part in found["parts"]} == {found["total"]["tokens"]}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--responses", "1"], "--responses=1"),
        (["--updates", "-1"], "--updates=-1"),
        (["--json", "missing/budget.json"], '--json="missing/budget.json" would lie in missing, which is no folder;'),
        (["--json", "docs"], "--json=docs is a folder;"),
        (["parallel.world_size=2"], "parallel.world_size=2"),
        (["precision.batch_invariant=true"], "precision.batch_invariant=true"),
        (["rl.steps=0", "--updates", "1"], "rl.steps=0"),
        (["rollout.engine=vllm", "engine.python=nowhere"], "engine.python=nowhere is no program"),
        (["reward.name=my_rewards.score"], 'reward.name="my_rewards.score" names the module my_rewards'),
        (
            ["rollout.engine=vllm", "engine.urls=[http://127.0.0.1:9]", "engine.start_timeout_s=1"],
            'engine.urls=["http://127.0.0.1:9"] cannot be asked (',
        ),
    ],
)
def test_mistakes_are_refused(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    ran = megarl("drift", "budget", RECIPE, f"output_dir={tmp_path / 'run'}", *arguments)
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"megarl: error: {complaint}") and ran.stderr.count("\n") == 1


def test_a_recipe_without_rl_steps_has_a_budget_too(tmp_path: Path) -> None:
    """Its optimizer is built and not used; the recipe's warm-up is longer than no steps."""
    found = budget_of(tmp_path, "rl.steps=0", "rl.optimizer.warmup_steps=20", "--responses", "4")
    assert list(sizes(found)) == ["kernel"]


def same_for_all(response: str, problem: object) -> float:
    """A reward that teaches nothing."""
    return 0.5


TAUGHT_NOTHING = ["reward.name=tests.e2e.test_drift_budget.same_for_all", "rl.optimizer.lr=1e-3", "--responses", "4"]


def test_updates_that_change_no_weight_make_no_staleness(tmp_path: Path) -> None:
    """It would be measured on nothing, and is absent with the reason."""
    found = budget_of(tmp_path, *TAUGHT_NOTHING, "--updates", "2")
    assert list(sizes(found)) == ["kernel"]
    told = "staleness: 2 updates changed no weight, as every response to a prompt got the same reward: "
    assert found["absent"][0].startswith(told)


def test_staleness_by_weight_decay_alone_is_told(tmp_path: Path) -> None:
    found = budget_of(tmp_path, *TAUGHT_NOTHING, "rl.optimizer.weight_decay=0.1", "--updates", "1")
    (stale,) = [part for part in found["parts"] if part["name"] == "staleness"]
    assert "weights 1 update apart, 1 of which had nothing to learn from" in stale["switched"]


def test_ctrl_c_ends_it_while_responses_are_under_way(tmp_path: Path) -> None:
    """Of a server that would take hours for them; nothing is said that is not so."""
    arguments = [*SIZES, f"output_dir={tmp_path / 'run'}", "rollout.engine=vllm", "--responses", "8"]
    with simulated_server(token_ms=1e7) as url:
        process = subprocess.Popen(
            [sys.executable, "-m", "megarl", "drift", "budget", RECIPE, *arguments, f"engine.urls=[{url}]"],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # tests that run in the background of a script inherit that it is ignored
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            wait_until(lambda: len(psutil.Process(process.pid).net_connections()) >= 8, process)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGINT, out + err
    assert err.splitlines()[-1] == "megarl: stopped by Ctrl-C" and "nothing was started" not in err, err
