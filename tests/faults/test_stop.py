"""Ctrl-C and SIGTERM end all processes within 10 seconds and leave a checkpoint that the same command continues."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from megarl.checkpoint.store import CheckpointStore
from tests import forked_runs
from tests.runs import metrics, reached, started, train, wait_until

pytestmark = pytest.mark.parallel

ENDS_WITHIN_S = 30.0
"""A fraction of what these runs would take; the run itself tells where it ended by its own limit."""
SAVES = "checkpoint.stop_grace_s=20"
"""Where the machine does other things, the default's 6 seconds may be over before the save is."""

CASES = {
    "sigterm in the warm start, alone": (signal.SIGTERM, "sft", 3, ["sft.steps=4000"]),
    "ctrl-c in rl, alone": (signal.SIGINT, "rl", 5, ["rl.steps=4000"]),
    "sigterm in rl, two ranks": (signal.SIGTERM, "rl", 5, ["rl.steps=4000", "parallel.world_size=2"]),
    # while the save of the step before is under way
    "sigterm in rl, saving each step in the background": (
        signal.SIGTERM,
        "rl",
        5,
        ["rl.steps=4000", "parallel.world_size=2", "checkpoint.background=true", "checkpoint.every=1"],
    ),
    "ctrl-c in the warm start, two stages": (
        signal.SIGINT,
        "sft",
        3,
        ["sft.steps=4000", "parallel.world_size=2", "parallel.pipeline=2"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_stop_signal(case: str, tmp_path: Path) -> None:
    """Exit code 128 + signal, in time, no process left, and the newest checkpoint is of the last step written."""
    number, phase, step, overrides = CASES[case]
    folder = tmp_path / "run"
    with started(f"output_dir={folder}", SAVES, *overrides) as process:
        wait_until(lambda: reached(folder, phase, step), process)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        output, _ = process.communicate(timeout=ENDS_WITHIN_S)
        assert process.returncode == 128 + number, output
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in family)
    newest = CheckpointStore(folder / "checkpoints", keep=2).newest()
    assert newest is not None, output
    last = metrics(folder)[-1]
    state = newest[1]["state"]
    assert (state["phase"], state["step"]) == (last["phase"], last["step"]), output
    assert not (folder / "checkpoints" / ".writing").exists()


def test_stop_during_evaluation(tmp_path: Path) -> None:
    """An evaluation that would take minutes is left between two batches of the engine."""
    folder = tmp_path / "run"
    overrides = [f"output_dir={folder}", SAVES, "evaluate.samples_per_prompt=20000", "evaluate.ks=[1]"]
    with started(*overrides) as process:
        wait_until(lambda: (folder / "reference" / "model.safetensors").exists(), process)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=ENDS_WITHIN_S)
        assert process.returncode == 128 + signal.SIGTERM, output


def test_a_rank_that_is_stuck_is_killed_in_time(tmp_path: Path) -> None:
    """A stopped rank answers no signal, and the others cannot go on without it: all are gone after the grace."""
    folder = tmp_path / "run"
    with started(f"output_dir={folder}", "parallel.world_size=2", "rl.steps=4000") as process:
        wait_until(lambda: reached(folder, "rl", 5), process)
        workers = psutil.Process(process.pid).children(recursive=True)
        os.kill(workers[1].pid, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=ENDS_WITHIN_S)
        assert process.returncode == 128 + signal.SIGTERM
        assert "ended 6 s after the signal, unsaved; the checkpoints before it are whole" in output
    assert not any(worker.is_running() for worker in workers)
    assert CheckpointStore(folder / "checkpoints", keep=2).newest() is not None


def test_a_second_signal_changes_nothing(tmp_path: Path) -> None:
    """An impatient user presses Ctrl-C again: the save is made all the same."""
    folder = tmp_path / "run"
    with started(f"output_dir={folder}", SAVES, "rl.steps=4000") as process:
        wait_until(lambda: reached(folder, "rl", 5), process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=ENDS_WITHIN_S)
        assert process.returncode == 128 + signal.SIGINT, output
        assert "the run was saved" in output


def test_damaged_checkpoints_are_not_started_over(tmp_path: Path) -> None:
    """Where none is whole the run is refused, and its logs stay."""
    folder = tmp_path / "run"
    assert forked_runs.train(f"output_dir={folder}", "rl.steps=3").returncode == 0
    before = (folder / "metrics.jsonl").read_bytes()
    for file in (folder / "checkpoints").glob("*/rng-00000.safetensors"):
        file.write_bytes(file.read_bytes() + b"x")
    again = train(f"output_dir={folder}", "rl.steps=3")
    assert again.returncode == 2
    assert again.stderr.splitlines()[-1].startswith("megarl: error: No checkpoint in ")
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_workers_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    """kill -9 on the launcher leaves no orphan, and the run goes on from its checkpoint to its end."""
    folder = tmp_path / "run"
    overrides = [f"output_dir={folder}", "parallel.world_size=2"]
    with started(*overrides, "rl.steps=4000") as process:
        wait_until(lambda: reached(folder, "rl", 2), process)
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) == 2
        os.kill(process.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(workers, timeout=ENDS_WITHIN_S)
        assert not alive


def test_a_rank_that_is_killed_ends_the_others(tmp_path: Path) -> None:
    """kill -9 on one rank: the launcher says which, and ends the rest in time with a failure."""
    folder = tmp_path / "run"
    with started(f"output_dir={folder}", "parallel.world_size=2", "rl.steps=4000") as process:
        wait_until(lambda: reached(folder, "rl", 2), process)
        workers = psutil.Process(process.pid).children(recursive=True)
        os.kill(workers[1].pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=ENDS_WITHIN_S)
        assert process.returncode == 128 + signal.SIGKILL
        assert "rank 1 ended with SIGKILL" in output
    resumed = train(f"output_dir={folder}", "parallel.world_size=2", "rl.steps=4000", "resume=never")
    assert resumed.returncode == 2
