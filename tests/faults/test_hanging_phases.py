"""A rank that hangs ends the job, with the stacks of all; of ranks that fail the first is named, with its error."""

from pathlib import Path

import pytest

from megarl.checkpoint.store import CheckpointStore
from megarl.loop.watchdog import STACKS, TIMED_OUT
from tests import runs
from tests.faults.planted import hanging
from tests.forked_runs import train

pytestmark = pytest.mark.parallel

TWO = ("parallel.world_size=2", "sft.steps=1", "rl.steps=3", "checkpoint.every=1", "evaluate.samples_per_prompt=0")
# far above what a phase of this run takes, on a machine that has other things to do
LIMIT_S = 15


@pytest.mark.parametrize(("name", "holds_python"), [("update", False), ("update", True), ("save", False)])
def test_a_hung_rank(name: str, holds_python: bool, tmp_path: Path) -> None:
    """Rank 1 sleeps, once so that no Python thread of it runs; rank 0 waits for it in a collective."""
    folder = tmp_path / "run"
    settings = [f"output_dir={folder}", *TWO, f"faults.phase_timeout_s={LIMIT_S}"]
    finished = train(*settings, start=hanging, more=(name, 2, 1, holds_python))
    assert finished.returncode == TIMED_OUT or (holds_python and finished.returncode == 1), finished.stderr
    assert f"took more than faults.phase_timeout_s={LIMIT_S}; the stacks of all ranks are in {folder}/stacks" in (
        finished.stderr
    )
    hung = (folder / STACKS / "rank-00001.txt").read_text()
    assert "planted.py" in hung and "hook" in hung
    if not holds_python:
        # else rank 1 ends at its limit, and the lost connection may end rank 0 before its own
        waiting = (folder / STACKS / "rank-00000.txt").read_text()
        assert "train.py" in waiting and "in _run_phases" in waiting
    assert CheckpointStore(folder / "checkpoints", keep=2).newest() is not None
    resumed = train(*settings)
    assert resumed.returncode == 0, resumed.stderr
    assert not (folder / STACKS).exists()


def test_the_first_error_is_told_and_the_others_are_not(tmp_path: Path) -> None:
    """Rank 1's reward has a bug; that rank 0 loses its connection is no error of its own."""
    folder = tmp_path / "run"
    finished = runs.train(f"output_dir={folder}", *TWO, "reward.name=tests.faults.planted.failing_on_rank_1")
    assert finished.returncode == 1, finished.stderr
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("megarl: rank 1 failed first: ZeroDivisionError: a bug of the reward's"), finished.stderr
    assert finished.stderr.count("Traceback (most recent call last)") == 1
