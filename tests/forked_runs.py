"""Commands in forked processes, one a rank, for tests of what they do rather than of how they are started."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import IO, Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from megarl.cli import main
from megarl.config.load import load_recipe
from tests.forked import fork, kill, world_environment
from tests.runs import command, environment

TIMEOUT_S = 240.0
GRACE_S = 5.0
"""For the other ranks, once one has failed."""


@dataclass(frozen=True)
class ForkedRun:
    """A run's processes, by rank."""

    ranks: list[ForkServerProcess]
    out: Path
    err: Path

    def poll(self) -> int | None:
        """The first failure's exit code, or 0 once all ranks have ended well; None before."""
        codes = [rank.exitcode for rank in self.ranks]
        failed = next((code for code in codes if code), None)
        return failed if failed or None in codes else 0

    def kill(self) -> None:
        """kill -9 to every rank."""
        for rank in self.ranks:
            kill(rank)

    @property
    def stdout(self) -> IO[str]:
        """What it has printed, errors last."""
        return StringIO(self.out.read_text() + self.err.read_text())


@contextmanager
def _ranks(words: list[str], size: int, start: Callable[..., int] = main, *more: Any) -> Iterator[ForkedRun]:
    """A command in the background, as under torchrun where it has several ranks; killed on the way out."""
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        # on a port that the kernel picks
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=TIMEOUT_S))
        run = ForkedRun([], out, err)
        try:
            for rank in range(size):
                variables = environment(**(world_environment(rank, size, store.port) if size > 1 else {}))
                run.ranks.append(fork(start, words, *more, environment=variables, stdout=out, stderr=err))
            yield run
        finally:
            run.kill()


def forked(arguments: list[str], start: Callable[..., int] = main, *more: Any) -> AbstractContextManager[ForkedRun]:
    """A run in the background, of as many ranks as its recipe says; killed on the way out.

    Args:
        arguments: recipe and overrides.
        start: called in each process, in the place of `main`, with the command's arguments and `more`.
        more: what pickle takes.
    """
    size = load_recipe(arguments[0], arguments[1:]).recipe.parallel.world_size
    return _ranks(["train", *arguments], size, start, *more)


def megarl(
    *words: str, ranks: int = 1, timeout_s: float = TIMEOUT_S, start: Callable[..., int] = main, more: Any = ()
) -> subprocess.CompletedProcess[str]:
    """Any command to its end.

    Args:
        words: those of the command line, behind the program's name.
        ranks: processes, joined as under torchrun where there are several.
        timeout_s: seconds; one that takes longer fails the test with what it printed.
        start: as in `forked`.
        more: likewise.
    """
    with _ranks(list(words), ranks, start, *more) as run:
        return ended(run, list(words), timeout_s)


def started(*overrides: str, start: Callable[..., int] = main, more: Any = ()) -> AbstractContextManager[ForkedRun]:
    """A tiny run in the background; `start` and `more` as in `forked`."""
    return forked(command(*overrides)[4:], start, *more)


def train(*overrides: str, start: Callable[..., int] = main, more: Any = ()) -> subprocess.CompletedProcess[str]:
    """A tiny run to its end; `start` and `more` as in `forked`."""
    return finished(command(*overrides)[4:], TIMEOUT_S, start, *more)


def finished(
    arguments: list[str], timeout_s: float = TIMEOUT_S, start: Callable[..., int] = main, *more: Any
) -> subprocess.CompletedProcess[str]:
    """A run to its end.

    Args:
        arguments: recipe and overrides.
        timeout_s: seconds; one that takes longer fails the test with what it printed.
        start: as in `forked`.
        more: likewise.
    """
    with forked(arguments, start, *more) as run:
        return ended(run, arguments, timeout_s)


def ended(
    run: ForkedRun, arguments: Sequence[str] = (), timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Waits for a run in the background; the arguments are those that a test's failure shows."""
    deadline = time.monotonic() + timeout_s
    while (status := run.poll()) is None:
        assert time.monotonic() < deadline, f"not over after {timeout_s:g} s: {run.stdout.read()}"
        time.sleep(0.02)
    # of a mistake that all ranks find, rank 0 tells
    grace = time.monotonic() + GRACE_S
    while status and any(rank.exitcode is None for rank in run.ranks) and time.monotonic() < grace:
        time.sleep(0.02)
    return subprocess.CompletedProcess(arguments, status, run.out.read_text(), run.err.read_text())
