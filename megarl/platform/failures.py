"""Which rank of a world on one machine failed first, and with what. Imports nothing heavy."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from megarl.platform.joined import RENDEZVOUS

_LONGEST = 2000


@dataclass(frozen=True)
class Failure:
    """What a rank raised.

    Attributes:
        rank: the rank.
        time_ns: when, by the machine's clock.
        error: kind and message, on one line.
    """

    rank: int
    time_ns: int
    error: str


def note_failure(error: BaseException) -> Failure | None:
    """Notes what this rank raised, for the launcher and the other ranks. Where megarl did not launch it, nothing.

    Returns:
        The failure that came first, where it is another rank's: this one's is likely its consequence.
    """
    folder, rank = os.environ.get(RENDEZVOUS), os.environ.get("RANK")
    if folder is None or rank is None:
        return None
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
    failures = noted_failures(Path(folder))
    beside = Path(folder) / f".failed-{rank}"
    beside.write_text(f"{time.time_ns()} {text}", encoding="utf-8", errors="backslashreplace")
    beside.rename(Path(folder) / f"failed-{rank}")
    return failures[0] if failures else None


def noted_failures(folder: Path) -> list[Failure]:
    """The failures noted in a launcher's rendezvous folder, the earliest first."""
    found = []
    for path in folder.glob("failed-*"):
        when, _, error = path.read_text(encoding="utf-8").partition(" ")
        found.append(Failure(int(path.name.removeprefix("failed-")), int(when), error))
    return sorted(found, key=lambda failure: failure.time_ns)
