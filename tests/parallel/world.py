"""Runs a function in a world of real processes joined by gloo, and brings back what each of them returns.

    results = run_world("tests.parallel.sums_worker:total", nprocs=2, args={"numbers": [1, 2]})

The function is called as `total(rank, world_size, args, result_dir)` with torch.distributed initialised. A world takes
a second to join, so let one function go over many cases and return a dict.
"""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported, but not by __all__

from tests.forked import fork, kill, world_environment
from tests.parallel.world_rank import main

# A rank whose peer failed sees its connections close at once; this is to write its own traceback.
GRACE_S = 3.0
# Time for the stuck ranks to print where they hang.
STACKS_S = 1.0
LOG_TAIL_CHARACTERS = 4000


class WorldError(AssertionError):
    """A rank failed or the time ran out. The message holds the first failure's traceback and every rank's output."""


@dataclass(frozen=True)
class _Rank:
    """One process of the world."""

    index: int
    process: ForkServerProcess
    folder: Path

    def has_exited(self) -> bool:
        """Whether it ended."""
        return self.process.exitcode is not None

    @property
    def log(self) -> Path:
        """Its stdout and stderr."""
        return self.folder / f"rank{self.index}.log"

    @property
    def result(self) -> Path:
        """What it returned, by torch.save."""
        return self.folder / f"rank{self.index}.result"

    @property
    def error(self) -> Path:
        """If it raised: the clock's nanoseconds at that moment on a line of its own, then the traceback."""
        return self.folder / f"rank{self.index}.error"


def run_world(
    target: str,
    nprocs: int,
    args: Mapping[str, Any] | None = None,
    timeout_s: float = 120.0,
    result_dir: Path | None = None,
    backend: str = "gloo",
) -> list[Any]:
    """Runs `target` on `nprocs` ranks and returns their return values by rank.

    Args:
        target: 'module:function'; the function takes (rank, world_size, args, result_dir).
        nprocs: ranks, all on this machine, one thread each.
        args: anything that torch.save writes; every rank gets its own copy.
        timeout_s: seconds for all of it, starts included; also torch.distributed's own limit.
        result_dir: folder that the ranks share and that outlives the call; a temporary one where None.
        backend: of torch.distributed.

    Raises:
        WorldError: a rank raised, died or was too slow. All processes are gone by then.
    """
    deadline = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="world-")))
        shared = result_dir or folder / "shared"
        shared.mkdir(parents=True, exist_ok=True)
        torch.save(dict(args or {}), folder / "args")
        # The parent serves the store, on a port that the kernel picks: no race for a port that looked free.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
        ranks = stack.enter_context(_started(target, nprocs, store.port, timeout_s, folder, shared, backend))
        while not all(rank.has_exited() for rank in ranks):
            if any(rank.error.exists() or _failed(rank) for rank in ranks):
                _wait_for_exit(ranks, min(deadline, time.monotonic() + GRACE_S))
                break
            if time.monotonic() > deadline:
                _print_stacks(ranks)
                raise WorldError(_report(f"{target} took more than {timeout_s:g} s on {nprocs} ranks", ranks))
            time.sleep(0.02)
        if not all(rank.result.exists() for rank in ranks):
            raise WorldError(_report(f"{target} failed on {nprocs} ranks", ranks))
        return [torch.load(rank.result, weights_only=False) for rank in ranks]


@contextlib.contextmanager
def _started(
    target: str, nprocs: int, port: int, timeout_s: float, folder: Path, shared: Path, backend: str
) -> Iterator[list[_Rank]]:
    """The ranks, started; all of them are killed on the way out."""
    ranks: list[_Rank] = []
    try:
        for index in range(nprocs):
            process = fork(
                main,
                target,
                folder,
                shared,
                timeout_s,
                backend,
                environment=os.environ | world_environment(index, nprocs, port),
                stdout=folder / f"rank{index}.log",
            )
            ranks.append(_Rank(index, process, folder))
        yield ranks
    finally:
        for rank in ranks:
            kill(rank.process)


def _failed(rank: _Rank) -> bool:
    return rank.has_exited() and not rank.result.exists()


def _wait_for_exit(ranks: list[_Rank], until: float) -> None:
    while time.monotonic() < until and not all(rank.has_exited() for rank in ranks):
        time.sleep(0.02)


def _print_stacks(ranks: list[_Rank]) -> None:
    """Makes the ranks that still run write their stacks into their logs."""
    for rank in ranks:
        if not rank.has_exited():
            os.kill(rank.process.ident, signal.SIGUSR1)
    time.sleep(STACKS_S)


def _report(headline: str, ranks: list[_Rank]) -> str:
    """The headline, the failures in the order they came, the end of every log."""
    exited = [rank for rank in ranks if rank.has_exited()]
    for rank in ranks:
        kill(rank.process)
    # A rank that died without a word came first: what its peers raised is that they lost it.
    silent = [rank for rank in exited if not rank.error.exists() and not rank.result.exists()]
    lines = [headline, *(f"--- rank {rank.index} died, exit status {rank.process.exitcode}" for rank in silent)]
    raised = [(rank.error.read_text().split("\n", 1), rank.index) for rank in ranks if rank.error.exists()]
    raised.sort(key=lambda failure: int(failure[0][0]))
    lines += [f"--- rank {index} raised\n{trace}" for (_, trace), index in raised]
    for rank in ranks:
        state = f"exit status {rank.process.exitcode}" if rank in exited else "still running"
        tail = rank.log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
        lines.append(f"--- rank {rank.index}, {state}, output\n{tail}")
    return "\n".join(lines)
