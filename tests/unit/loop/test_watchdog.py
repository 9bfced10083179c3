"""Two processes that watch themselves, as a trainer's ranks do, without a trainer."""

import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from megarl.loop.watchdog import STACKS, TIMED_OUT
from tests.forked import fork, kill
from tests.runs import environment
from tests.unit.loop.watched import watched

LIMIT_S = 4.0
"""Far above what the second takes to start, a fork of what is imported, which the first waits for."""
ENDS_WITHIN_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def ranks(folder: Path, limit_s: float | None, whats: list[str]) -> list[tuple[int | None, str]]:
    """Exit code and stderr of each rank, all of which go on once all watch."""
    armed = folder.with_name("armed")
    armed.mkdir()
    started: list[ForkServerProcess] = []
    deadline = time.monotonic() + ENDS_WITHIN_S
    try:
        for rank, what in enumerate(whats):
            out, error = (folder.with_name(f"{name}{rank}") for name in ("out", "error"))
            given = (folder, rank, limit_s, what, len(whats))
            started.append(fork(watched, *given, environment=environment(), stdout=out, stderr=error))
            # rank 0 removes what an earlier job left, so it comes first
            while not (armed / str(rank)).exists():
                assert started[rank].exitcode is None and time.monotonic() < deadline, error.read_text()
                time.sleep(0.01)
        for process in started:
            process.join(deadline - time.monotonic())
        codes = [process.exitcode for process in started]
    finally:
        for process in started:
            kill(process)
    return [(code, folder.with_name(f"error{rank}").read_text()) for rank, code in enumerate(codes)]


@pytest.mark.parametrize("what", ["sleeps", "holds python"])
def test_stacks_of_both(folder: Path, what: str) -> None:
    """The one that Python cannot interrupt is ended by the timer behind its thread, with its stack too."""
    found = ranks(folder, LIMIT_S, ["sleeps", what])
    assert found[0][0] == TIMED_OUT
    assert found[1][0] == (1 if what == "holds python" else TIMED_OUT)
    assert "'update' took more than faults.phase_timeout_s=4; the stacks of all ranks are in" in found[0][1]
    for rank in (0, 1):
        assert "in hang_here" in (folder / STACKS / f"rank-{rank:05d}.txt").read_text()


def test_nothing_stays_of_ranks_that_end_well(folder: Path) -> None:
    (folder / STACKS).mkdir()
    (folder / STACKS / "timed-out").touch()
    assert [code for code, _ in ranks(folder, 60.0, ["ends", "ends"])] == [0, 0]
    assert list(folder.iterdir()) == []


def test_without_a_limit_nothing_is_watched(folder: Path) -> None:
    assert ranks(folder, None, ["ends"])[0][0] == 0
    assert list(folder.iterdir()) == []
