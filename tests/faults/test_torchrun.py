"""Under torchrun too, the failure that its last lines name is the first one, with its error."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.runs import REPOSITORY, command, environment, reached, wait_until

pytestmark = pytest.mark.parallel

TWO = ("parallel.world_size=2", "sft.steps=1", "evaluate.samples_per_prompt=0")
WITHIN_S = 120


@contextmanager
def under_torchrun(*overrides: str) -> Iterator[subprocess.Popen[str]]:
    """A tiny run of two ranks; killed with all it started on the way out."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = subprocess.Popen(
        [*torchrun, *command(*TWO, *overrides)[1:]],
        cwd=REPOSITORY,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        family = [process] if process.poll() is None else []
        family += psutil.Process(process.pid).children(recursive=True) if family else []
        for each in family:
            each.kill()
        process.wait(timeout=30)


def root_cause(output: str) -> str:
    """The last part of what torchrun prints."""
    return output.rpartition("Root Cause (first observed failure):")[2]


def test_a_rank_that_raises(tmp_path: Path) -> None:
    """Rank 1's reward has a bug; that rank 0 loses its connection is told as that."""
    with under_torchrun(
        f"output_dir={tmp_path / 'run'}", "reward.name=tests.faults.planted.failing_on_rank_1"
    ) as process:
        output, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1, output
    assert "rank      : 1 (local_rank: 1)" in root_cause(output), output
    assert "ZeroDivisionError: a bug of the reward's" in root_cause(output), output


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    """Rank 1 notes nothing, and rank 0 has an error that follows from its end."""
    folder = tmp_path / "run"
    with under_torchrun(f"output_dir={folder}", "rl.steps=4000") as process:
        wait_until(lambda: reached(folder, "rl", 2), process)
        ranks = {each.environ()["RANK"]: each for each in psutil.Process(process.pid).children()}
        os.kill(ranks["1"].pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1, output
    assert "rank      : 1 (local_rank: 1)" in root_cause(output), output
    assert "Signal 9 (SIGKILL)" in root_cause(output), output
