"""Whole runs whose responses take a stated time at a simulated server, in each mode.

The server's responses depend on their request alone, and requests are named by their place in the data: so every mode
must train on the same responses in the same order, however old the weights were that wrote them.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from megarl.checkpoint.responses import load_responses
from megarl.checkpoint.store import MANIFEST
from megarl.observe.metrics import reproducible
from tests.engines.attached import nothing_ahead
from tests.engines.simulated import simulated_server
from tests.forked_runs import ended, started, train
from tests.runs import metrics, reached, undocumented, wait_until

pytestmark = pytest.mark.parallel

STEPS, GROUPS, GROUP = 8, 4, 4
SIZES = [
    f"rl.steps={STEPS}",
    "sft.steps=0",
    "evaluate.samples_per_prompt=0",
    # every response
    f"observe.samples_per_step={GROUPS * GROUP}",
    "rollout.engine=vllm",
    # whose penalty no way to a reward may go round
    "rl.overlong.buffer_tokens=4",
]
# a checkpoint cuts responses that may span updates, and the rest of one is drawn anew
UNCUT = "checkpoint.every=0"
MODES: dict[str, list[str]] = {
    "sync": [],
    "one_step_off": ["rl.asynchrony.mode=one_step_off"],
    "fully_async, 1": ["rl.asynchrony.mode=fully_async", UNCUT, "rl.asynchrony.spanning=keep"],
    "fully_async, 3": [
        "rl.asynchrony.mode=fully_async",
        UNCUT,
        "rl.asynchrony.max_staleness=3",
        "rl.correction.mode=decoupled",
        "rl.correction.weighting=tis",
    ],
    "drop": ["rl.asynchrony.mode=fully_async", UNCUT, "rl.asynchrony.max_staleness=2", "rl.asynchrony.spanning=drop"],
}
AGES = [f"staleness/{name}" for name in ("mean", "max", "older_tokens_share", "spanning_share", "dropped")]
BOUNDS = {"sync": 0, "one_step_off": 1, "fully_async, 1": 1, "fully_async, 3": 3, "drop": 2}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Responses of 1 to 16 tokens at 15 ms each: about as long as a step of the trainer."""
    with simulated_server(token_ms=15) as url:
        yield url


@pytest.fixture(scope="module")
def runs(server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A whole run of each mode."""
    folders = {}
    for number, (mode, keys) in enumerate(MODES.items()):
        folders[mode] = tmp_path_factory.mktemp(f"mode{number}") / "run"
        finished = train(f"output_dir={folders[mode]}", f"engine.urls=[{server}]", *SIZES, *keys)
        assert finished.returncode == 0, finished.stderr
        assert ("nothing corrects for that" in finished.stdout.replace("\n", " ")) == (
            mode in ("one_step_off", "fully_async, 1", "drop")
        )
    return folders


def trained(folder: Path) -> list[dict[str, Any]]:
    """Every response that was trained on, in its order, without the weights that wrote it."""
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "weight_version"} for row in rows]


def places(folder: Path) -> list[tuple[int, str, int]]:
    return [(row["step"], row["problem_id"], row["sample"]) for row in trained(folder)]


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_trains_on_the_same_responses_in_the_same_order(mode: str, runs: dict[str, Path]) -> None:
    expected = [
        (step + 1, f"training/{step * GROUPS + group}", sample)
        for step in range(STEPS)
        for group in range(GROUPS)
        for sample in range(GROUP)
    ]
    assert places(runs[mode]) == expected
    without_advantages = [[{**row, "advantage": None} for row in trained(runs[name])] for name in (mode, "sync")]
    assert without_advantages[0] == without_advantages[1]
    assert any(row["reward"] < 0 for row in trained(runs[mode])), "no response was in the penalty's buffer"


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "sync"])
def test_no_token_is_older_than_the_bound(mode: str, runs: dict[str, Path]) -> None:
    lines = metrics(runs[mode])
    ages = [line["staleness/max"] for line in lines]
    # the first responses are written by the weights that they train
    assert ages[0] == 0
    assert max(ages) == BOUNDS[mode]
    assert all(0 <= line["staleness/mean"] <= line["staleness/max"] for line in lines)
    assert [undocumented(line.keys() - {"phase", "step"}) for line in lines] == [[]] * STEPS


def test_only_what_may_span_an_update_does(runs: dict[str, Path]) -> None:
    spanning = {mode: max(line.get("staleness/spanning_share", 0) for line in metrics(runs[mode])) for mode in MODES}
    dropped = {mode: sum(line.get("staleness/dropped", 0) for line in metrics(runs[mode])) for mode in MODES}
    assert spanning["one_step_off"] == spanning["drop"] == 0
    assert spanning["fully_async, 3"] > 0
    assert dropped["drop"] > 0
    assert dropped["one_step_off"] == dropped["fully_async, 3"] == 0


def test_one_step_off_with_nothing_ahead_is_the_synchronous_run(
    server: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    """A step gets its responses by the fleet's rounds or by the stream, which differ in when and in nothing else."""
    folder, whole = tmp_path / "run", runs["sync"]
    keys = [f"output_dir={folder}", f"engine.urls=[{server}]", *SIZES, *MODES["one_step_off"]]
    finished = train(*keys, start=nothing_ahead)
    assert finished.returncode == 0, finished.stderr
    lines = [reproducible(line) for line in metrics(folder)]
    assert [{name: line.pop(name) for name in AGES} for line in lines] == [dict.fromkeys(AGES, 0.0)] * STEPS
    # by age, which only asynchronous runs have, all tokens are in one group
    lines = [{name: value for name, value in line.items() if not name.startswith("drift/age_")} for line in lines]
    assert lines == [reproducible(line) for line in metrics(whole)]
    for name in ("samples.jsonl", "model/model.safetensors"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_killed_run_one_step_off_resumes_as_the_unbroken_one(
    server: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    """The checkpoint holds the next step's responses, which the weights before it wrote."""
    whole, broken = runs["one_step_off"], tmp_path / "broken"
    overrides = [f"output_dir={broken}", f"engine.urls=[{server}]", *SIZES, *MODES["one_step_off"]]
    with started(*overrides) as run:
        wait_until(lambda: reached(broken, "rl", 5), run)
        run.kill()
    resumed = train(*overrides)
    assert resumed.returncode == 0, resumed.stderr
    assert "checkpoints/1-rl-00000004" in resumed.stdout
    assert [reproducible(line) for line in metrics(broken)] == [reproducible(line) for line in metrics(whole)]
    for name in ("samples.jsonl", "model/model.safetensors"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_run_that_is_stopped_while_it_waits_goes_on_with_what_it_had(runs: dict[str, Path], tmp_path: Path) -> None:
    """Whole and begun responses are in the checkpoint; none is lost, none is trained on twice."""
    folder = tmp_path / "run"
    keys = [f"output_dir={folder}", *SIZES, *MODES["fully_async, 3"]]
    # so slow that the first step waits
    with simulated_server(token_ms=500, tokens=(1, 16)) as url, started(*keys, f"engine.urls=[{url}]") as run:
        wait_until(lambda: (folder / "reference").exists(), run)
        # the shortest responses are there by then, the longest are not
        time.sleep(4)
        os.kill(run.ranks[0].ident, signal.SIGTERM)
        assert ended(run).returncode == 128 + signal.SIGTERM
        port = int(url.rpartition(":")[2])
    (checkpoint,) = folder.glob("checkpoints/1-rl-00000000")
    awaited = load_responses(checkpoint)
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    assert manifest["engine"] == {"name": "vllm", "releases": ["1.0"]}
    rows = [each for batch in awaited.values() for each in batch.values()]
    assert {each.finish_reason for each in rows} == {"stop", "abort"}
    assert set(awaited) == {0, 4, 8, 12}
    with simulated_server(token_ms=15, port=port, release="1.1") as url:
        resumed = train(*keys, f"engine.urls=[{url}]")
    assert resumed.returncode == 0, resumed.stderr
    told = " ".join(resumed.stdout.split())
    assert "the engine has changed since (vllm 1.0 -> vllm 1.1): the bits may differ from here on" in told
    assert places(folder) == places(runs["sync"])
    held = {(each.request.problem_id, each.request.sample): each for each in rows}
    shown = {(row["problem_id"], row["sample"]): row for row in trained(folder)}
    for key, each in held.items():
        assert shown[key]["tokens"] == len(each.token_ids) or each.finish_reason == "abort"
        assert shown[key]["tokens"] > len(each.token_ids) or each.finish_reason == "stop"


def test_a_server_that_dies_loses_and_doubles_nothing(runs: dict[str, Path], tmp_path: Path) -> None:
    """It is killed in the middle of a run and comes back: what it had is run again."""
    folder = tmp_path / "run"
    keys = [f"output_dir={folder}", *SIZES, *MODES["fully_async, 3"]]
    with ExitStack() as stack:
        with simulated_server(token_ms=15) as url:
            run = stack.enter_context(started(*keys, f"engine.urls=[{url}]"))
            wait_until(lambda: reached(folder, "rl", 3), run)
        assert run.poll() is None, "the run was over before its server died"
        with simulated_server(token_ms=15, port=int(url.rpartition(":")[2])):
            finished = ended(run)
            assert finished.returncode == 0, finished.stderr
    assert "is started again" in finished.stdout + finished.stderr
    assert places(folder) == places(runs["sync"])
    assert max(line["staleness/max"] for line in metrics(folder)) <= BOUNDS["fully_async, 3"]


def test_two_ranks_train_on_the_same(server: str, runs: dict[str, Path], tmp_path: Path) -> None:
    """The other rank learns from the main one what was collected."""
    folder = tmp_path / "run"
    keys = [f"output_dir={folder}", f"engine.urls=[{server}]", "parallel.world_size=2", *SIZES, *MODES["one_step_off"]]
    finished = train(*keys)
    assert finished.returncode == 0, finished.stderr
    assert trained(folder) == trained(runs["one_step_off"])
