"""Real faults at points that a test names, in a run's own processes: the point is found by Python's audit events."""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megarl.cli import main

_TOUCHING = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")
SAVE_EVENTS = "save-events"
"""File of a run that `counting_saves` wrote: on line n the files that its nth save touched."""


def killed_in_phase(argv: list[str], name: str, number: int, rank: int) -> int:
    """`main`; kill -9 to that rank when it comes to the phase of that name for the nth time."""
    if _rank() == rank:
        _in_phase(name, number, lambda: os.kill(os.getpid(), signal.SIGKILL))
    return main(argv)


def killed_in_save(argv: list[str], folder: str, number: int, event_number: int) -> int:
    """`main`; kill -9 to rank 0 just before it touches the last of so many files of the folder's nth save."""
    saves = events = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal saves, events
        if _begins_save(event, args, folder):
            saves, events = saves + 1, 0
        if saves == number and _touches(event, args, folder):
            events += 1
            if events == event_number:
                os.kill(os.getpid(), signal.SIGKILL)

    if _rank() == 0:
        sys.addaudithook(hook)
    return main(argv)


def counting_saves(argv: list[str], folder: str) -> int:
    """`main`; how many files rank 0 touches in each save is written down at the end."""
    counts: list[int] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if _begins_save(event, args, folder):
            counts.append(0)
        if counts and _touches(event, args, folder):
            counts[-1] += 1

    if _rank() == 0:
        sys.addaudithook(hook)
    code = main(argv)
    if _rank() == 0:
        Path(folder, SAVE_EVENTS).write_text("".join(f"{count}\n" for count in counts))
    return code


def with_largest_file(argv: list[str], limit: int) -> int:
    """`main` in a process whose writes beyond so many bytes of a file fail, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return main(argv)


def noting_syncs(argv: list[str], log: str) -> int:
    """`main`; a line in `log` for each file that is synced to the disk, and for each that is renamed, its old name."""
    fsync = os.fsync

    def note(what: str, path: str) -> None:
        with open(log, "a") as file:
            file.write(f"{what} {Path(path).name}\n")

    def noted(descriptor: int) -> None:
        note("synced", os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "os.rename":
            note("renamed", os.fspath(args[0]))

    os.fsync = noted
    sys.addaudithook(hook)
    return main(argv)


def copying_late(argv: list[str], seconds: float) -> int:
    """`main`; in each save the copy of this rank's tensors begins so late."""
    from megarl.checkpoint.tensors import PendingTensors

    copy = PendingTensors.copy

    def late(pending: PendingTensors) -> None:
        time.sleep(seconds)
        copy(pending)

    PendingTensors.copy = late  # type: ignore[method-assign]
    return main(argv)


def hanging(argv: list[str], name: str, number: int, rank: int, holds_python: bool) -> int:
    """`main`; that rank sleeps for good in the nth phase of that name, with or without Python's lock."""
    if _rank() == rank:
        _in_phase(name, number, lambda: (ctypes.PyDLL(None) if holds_python else time).sleep(600))
    return main(argv)


def losing(argv: list[str], pid: int, name: str, number: int) -> int:
    """`main`; kill -9 to another process, such as its server, when this one comes to the nth phase of that name."""
    _in_phase(name, number, lambda: os.kill(pid, signal.SIGKILL))
    return main(argv)


def failing_on_rank_1(response: str, problem: object) -> float:
    """A reward that has a bug on one rank."""
    if _rank() == 1:
        raise ZeroDivisionError("a bug of the reward's")
    return 0.0


def _in_phase(name: str, number: int, act: Callable[[], object]) -> None:
    """Acts once, when this process comes to the phase of that name for the nth time."""
    seen = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if event == "megarl.phase" and args[0] == name:
            seen += 1
            if seen == number:
                act()

    sys.addaudithook(hook)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _begins_save(event: str, args: tuple[Any, ...], folder: str) -> bool:
    return event == "os.mkdir" and str(args[0]) == f"{folder}/checkpoints/.writing"


def _touches(event: str, args: tuple[Any, ...], folder: str) -> bool:
    return event in _TOUCHING and str(args[0]).startswith(f"{folder}/checkpoints")
