"""Two processes that watch themselves, as a trainer's ranks do, without a trainer."""

import subprocess
import sys
from pathlib import Path

import pytest

from megarl.loop.watchdog import STACKS, TIMED_OUT
from tests.runs import environment

LIMIT_S = 15.0
"""Far above what the second takes to start, which the first waits for."""

RANK = """
import ctypes, sys, time
from pathlib import Path
from megarl.loop.watchdog import WATCHDOG, phase

def hang_here(holds_python):
    ctypes.PyDLL(None).sleep(600) if holds_python else time.sleep(600)

rank, limit_s, what = int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
WATCHDOG.arm(Path(sys.argv[1]), rank, limit_s or None)
print("armed", flush=True)
sys.stdin.readline()
with phase("rollout"):
    pass
if what == "ends":
    WATCHDOG.disarm()
else:
    with phase("update"):
        hang_here(what == "holds python")
"""


def ranks(folder: Path, limit_s: float, whats: list[str]) -> list[tuple[int, str]]:
    """Exit code and stderr of each rank, all of which go on once all watch."""
    started = []
    for rank, what in enumerate(whats):
        command = [sys.executable, "-c", RANK, str(folder), str(rank), str(limit_s), what]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, env=environment(), text=True, **pipes)  # type: ignore[call-overload]
        assert process.stdout.readline() == "armed\n", process.communicate()[1]
        started.append(process)
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    try:
        errors = [process.communicate(timeout=120)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, error) for process, error in zip(started, errors, strict=True)]


@pytest.mark.parametrize("what", ["sleeps", "holds python"])
def test_stacks_of_both(tmp_path: Path, what: str) -> None:
    """The one that Python cannot interrupt is ended by the timer behind its thread, with its stack too."""
    found = ranks(tmp_path, LIMIT_S, ["sleeps", what])
    assert found[0][0] == TIMED_OUT
    assert found[1][0] == (1 if what == "holds python" else TIMED_OUT)
    assert "'update' took more than faults.phase_timeout_s=15; the stacks of all ranks are in" in found[0][1]
    for rank in (0, 1):
        assert "in hang_here" in (tmp_path / STACKS / f"rank-{rank:05d}.txt").read_text()


def test_nothing_stays_of_ranks_that_end_well(tmp_path: Path) -> None:
    (tmp_path / STACKS).mkdir()
    (tmp_path / STACKS / "timed-out").touch()
    assert [code for code, _ in ranks(tmp_path, 60.0, ["ends", "ends"])] == [0, 0]
    assert list(tmp_path.iterdir()) == []


def test_without_a_limit_nothing_is_watched(tmp_path: Path) -> None:
    assert ranks(tmp_path, 0.0, ["ends"])[0][0] == 0
    assert list(tmp_path.iterdir()) == []
