"""Ends a job that hangs, with the stacks of all ranks: one phase may take so long, whatever it waits for."""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

STACKS = "stacks"
"""Folder of a run with a file a rank, where a phase took too long."""
TIMED_OUT = 124
"""Exit code, as that of `timeout`."""
_MARKER = "timed-out"


class Watchdog:
    """A thread that looks at the clock, and behind it a timer in C for a rank that holds Python's lock."""

    def __init__(self) -> None:
        self._name, self._began = "start", time.monotonic()
        self._limit_s: float | None = None
        self._over, self._expired = threading.Event(), threading.Event()

    def arm(self, folder: Path, rank: int, limit_s: float | None) -> None:
        """Watches from here on. To be called on rank 0 before the others: it removes what an earlier job left.

        Args:
            folder: of the run, which all ranks see.
            rank: this process's.
            limit_s: seconds that a phase may take; None for no limit.
        """
        if limit_s is None:
            return
        self._folder, self._rank = folder / STACKS, rank
        self._folder.mkdir(exist_ok=True)
        if rank == 0:
            for file in self._folder.iterdir():
                file.unlink()
        self._every_s = min(max(limit_s / 60, 0.1), 10.0)
        self._file: IO[str] | None = None
        self._over.clear()
        self._limit_s = limit_s
        self.begin("start")
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def disarm(self) -> None:
        """Watches no more."""
        if self._expired.is_set():
            # a lost rank got this one out of its phase: its stacks stay, and the watching thread ends the process
            self._thread.join()
        if self._limit_s is not None:
            faulthandler.cancel_dump_traceback_later()
            self._over.set()
            self._limit_s = None
            if self._file is not None:
                self._file.close()
                self._path.unlink(missing_ok=True)
            # where another rank left its stacks this fails, and they stay
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def begin(self, name: str) -> str:
        """Another phase begins. Returns the name of the one before."""
        before, self._name, self._began = self._name, name, time.monotonic()
        if self._limit_s is not None:
            if self._file is None:
                self._file = self._path.open("w")
            # with room for the other ranks to see that this one is late
            late_s = self._limit_s + self._every_s + 1.0
            faulthandler.dump_traceback_later(late_s, exit=True, file=self._file)
        return before

    @property
    def _path(self) -> Path:
        return self._folder / f"rank-{self._rank:05d}.txt"

    def _watch(self) -> None:
        while not self._over.wait(self._every_s):
            limit_s = self._limit_s
            if limit_s is None:
                return
            mine = time.monotonic() - self._began > limit_s
            if mine or (self._folder / _MARKER).exists():
                self._expire(limit_s, mine=mine)

    def _expire(self, limit_s: float, *, mine: bool) -> None:
        self._expired.set()
        faulthandler.cancel_dump_traceback_later()
        assert self._file is not None
        took_s = time.monotonic() - self._began
        self._file.write(f"rank {self._rank}, in '{self._name}' for {took_s:.1f} s\n")
        self._file.flush()
        faulthandler.dump_traceback(self._file, all_threads=True)
        os.fsync(self._file.fileno())
        if mine:
            (self._folder / _MARKER).touch()
            message = (
                f"megarl: rank {self._rank}: '{self._name}' took more than faults.phase_timeout_s={limit_s:g}; "
                f"the stacks of all ranks are in {self._folder}\n"
            )
            os.write(2, message.encode())
        # the others must have seen the marker before this one's end ends them
        time.sleep(self._every_s + 2.0)
        os._exit(TIMED_OUT)


WATCHDOG = Watchdog()
"""Of this process."""


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """The block is a phase with a limit of its own; raises the auditing event `megarl.phase` with its name."""
    sys.audit("megarl.phase", name)
    before = WATCHDOG.begin(name)
    try:
        yield
    finally:
        WATCHDOG.begin(before)
