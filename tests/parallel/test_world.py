"""The helper that every test of several processes stands on."""

import time
from pathlib import Path

import pytest

from tests.parallel.world import WorldError, run_world

pytestmark = pytest.mark.parallel


def is_alive(pid: int) -> bool:
    """Whether a process runs: it exists and is not a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_results_come_back_by_rank(tmp_path: Path) -> None:
    args = {"numbers": [0.25, 2.0]}
    results = run_world("tests.parallel.world_worker:sums", 2, args, timeout_s=90, result_dir=tmp_path)
    assert [(r["rank"], r["world_size"], r["total"].item(), r["backend"]) for r in results] == [
        (0, 2, 2.25, "gloo"),
        (1, 2, 2.25, "gloo"),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.txt", "1.txt"]


def test_first_failure_is_reported_first() -> None:
    with pytest.raises(WorldError) as caught:
        run_world("tests.parallel.world_worker:fails_on_one", 2, timeout_s=90)
    message = str(caught.value)
    assert "ValueError: the last rank is broken" in message
    assert message.index("rank 1 raised") < message.index("rank 0")


def test_death_without_a_traceback_is_reported_first() -> None:
    with pytest.raises(WorldError) as caught:
        run_world("tests.parallel.world_worker:dies_on_one", 2, timeout_s=90)
    message = str(caught.value)
    assert message.index("rank 1 died, exit status 7") < message.index("--- rank 0")


def test_time_out_shows_stacks_and_leaves_no_process(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(WorldError) as caught:
        run_world("tests.parallel.world_worker:hangs", 2, timeout_s=5, result_dir=tmp_path)
    assert time.monotonic() - started < 18
    assert "took more than 5 s" in str(caught.value)
    assert "in wait_for_ever" in str(caught.value)
    assert "about to wait" in str(caught.value)
    children = [int(path.read_text()) for path in tmp_path.glob("*.pid")]
    assert len(children) == 2
    deadline = time.monotonic() + 5
    while any(is_alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_alive(pid) for pid in children)
