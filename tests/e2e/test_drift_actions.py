"""What whole runs do where drift is beyond a bound, and which correction they pick by it."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from megarl.observe.metrics import reproducible
from tests.forked_runs import started, train
from tests.runs import metrics, reached, undocumented, wait_until

pytestmark = pytest.mark.parallel

ALWAYS = "{abs_max: 0}"
"""A bound that rounding alone crosses: engine and trainer never agree on every bit of every token."""
NEVER = "{abs_max: 5}"
SHORT = ("rl.steps=3", "evaluate.samples_per_prompt=0")
DRIFTS = ("precision.fp8={recipe: blockwise, emulation: true}", "drift.correction=auto")


def steps(folder: Path) -> list[dict[str, float]]:
    """The RL steps, all of whose metrics are documented."""
    lines = [line for line in metrics(folder) if line["phase"] == "rl"]
    assert not [name for line in lines for name in undocumented(line.keys() - {"phase", "step"})]
    return lines


def test_warn(tmp_path: Path) -> None:
    """Told once for a row of steps; the numbers are those of a run without bounds."""
    plain, warned = tmp_path / "plain", tmp_path / "warned"
    assert train(f"output_dir={plain}", *SHORT).returncode == 0
    run = train(f"output_dir={warned}", *SHORT, f"drift.warn={ALWAYS}", f"drift.stop={NEVER}")
    assert run.returncode == 0, run.stderr
    told = [line for line in run.stdout.splitlines() if "drift.warn" in line]
    assert len(told) == 1
    assert told[0].startswith("warning: at step 1 drift/abs_max=")
    assert told[0].endswith(" is above 0, the bound of drift.warn[abs_max]")
    lines = steps(warned)
    assert [line.pop("drift/bounds_crossed") for line in lines] == [1, 1, 1]
    assert [reproducible(line) for line in lines] == [reproducible(line) for line in steps(plain)]


@pytest.mark.parametrize("layout", [[], ["parallel.world_size=2"], ["parallel.world_size=2", "parallel.pipeline=2"]])
def test_skip_update(layout: list[str], tmp_path: Path) -> None:
    """The weights stay, whoever holds them; the data moves on."""
    folder = tmp_path / "run"
    options = ["rl.updates_per_step=2", f"drift.skip_update={ALWAYS}", *layout]
    run = train(f"output_dir={folder}", *SHORT, *options)
    assert run.returncode == 0, run.stderr
    before, after = (load_file(folder / name / "model.safetensors") for name in ("reference", "model"))
    assert all((before[name] == after[name]).all() for name in before)
    lines = steps(folder)
    assert [line["drift/skipped_updates"] for line in lines] == [2, 2, 2]
    assert [line["policy/empty_updates"] for line in lines] == [2, 2, 2]
    assert all("policy/loss" not in line and line["response/untrained_share"] < 1 for line in lines)
    assert "is above 0, the bound of drift.skip_update[abs_max]: its update is skipped" in run.stdout
    problems = [json.loads(line)["problem_id"] for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(set(problems)) == 3 * 4, "each step has prompts of its own"


def test_a_bound_that_is_not_crossed_skips_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = train(f"output_dir={folder}", *SHORT, f"drift.skip_update={NEVER}")
    assert run.returncode == 0, run.stderr
    before, after = (load_file(folder / name / "model.safetensors") for name in ("reference", "model"))
    assert any((before[name] != after[name]).any() for name in before)
    assert [line["drift/skipped_updates"] for line in steps(folder)] == [0, 0, 0]


def test_a_skipped_update_trains_no_critic(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    critic = ["rl.objective.name=ppo", "rl.advantage=gae"]
    run = train(f"output_dir={folder}", *SHORT, *critic, f"drift.skip_update={ALWAYS}")
    assert run.returncode == 0, run.stderr
    assert [line["critic/empty_updates"] for line in steps(folder)] == [1, 1, 1]
    # what a step estimates of the same critic differs by its responses alone
    assert all("critic/loss" not in line for line in steps(folder))


def test_stop(tmp_path: Path) -> None:
    """Saved before the step, exit code 2; with a looser bound the run is the one that never stopped."""
    folder, whole = tmp_path / "run", tmp_path / "whole"
    stopped = train(f"output_dir={folder}", *SHORT, f"drift.stop={ALWAYS}", "parallel.world_size=2")
    assert stopped.returncode == 2, stopped.stderr
    assert stopped.stderr.startswith("megarl: error: at step 1 drift/abs_max=")
    assert "the bound of drift.stop[abs_max]; find the cause" in stopped.stderr
    assert stopped.stderr.count("\n") == 1, "one sentence, from one rank"
    assert steps(folder) == []
    resumed = train(f"output_dir={folder}", *SHORT, f"drift.stop={NEVER}", "parallel.world_size=2")
    assert resumed.returncode == 0, resumed.stderr
    assert f"resumed from {folder}/checkpoints/1-rl-00000000" in resumed.stdout
    assert train(f"output_dir={whole}", *SHORT, f"drift.stop={NEVER}", "parallel.world_size=2").returncode == 0
    assert [reproducible(line) for line in steps(folder)] == [reproducible(line) for line in steps(whole)]


def test_auto_follows_the_drift_and_resumes_where_it_was(tmp_path: Path) -> None:
    """FP8 drifts by more than rounding, which needs nothing; killed with -9, the choices are the same."""
    calm, whole, broken = tmp_path / "calm", tmp_path / "whole", tmp_path / "broken"
    options = ["rl.steps=8", "evaluate.samples_per_prompt=0", "checkpoint.every=2"]
    run = train(f"output_dir={calm}", *SHORT, "drift.correction=auto")
    assert run.returncode == 0, run.stderr
    assert [line["drift/correction_level"] for line in steps(calm)] == [0, 0, 0]
    assert all(line["correction/kept_share"] == line["correction/weight_mean"] == 1 for line in steps(calm))
    run = train(f"output_dir={whole}", *options, *DRIFTS)
    assert run.returncode == 0, run.stderr
    levels = [line["drift/correction_level"] for line in steps(whole)]
    assert max(levels) >= 1
    told = [line for line in run.stdout.splitlines() if line.startswith("drift.correction=auto takes ")]
    changes = sum(now != before for before, now in zip([0.0, *levels], levels, strict=False))
    assert len(told) == changes
    with started(f"output_dir={broken}", *options, *DRIFTS) as killed:
        wait_until(lambda: reached(broken, "rl", 3), killed)
        killed.kill()
    assert train(f"output_dir={broken}", *options, *DRIFTS).returncode == 0
    assert [reproducible(line) for line in steps(broken)] == [reproducible(line) for line in steps(whole)]
