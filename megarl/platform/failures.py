"""Which rank of a world on one machine failed first, and with what. Imports nothing heavy."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from megarl.config.errors import UserError
from megarl.platform.joined import RENDEZVOUS

_LONGEST = 2000
_TORCHRUN = "TORCHELASTIC_ERROR_FILE"
_LOOKED_S = 1.0
"""torchrun looks every 0.1 s."""


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
    """Notes what this rank raised, for megarl's launcher or torchrun, and the other ranks. Under others, nothing.

    Returns:
        The failure that came first, where it is another rank's: this one's is likely its consequence.
    """
    folder, rank = os.environ.get(RENDEZVOUS), os.environ.get("RANK")
    if folder is None and (file := os.environ.get(_TORCHRUN)) is not None:
        return _note_for_torchrun(error, Path(file))
    if folder is None or rank is None:
        return None
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
    failures = noted_failures(Path(folder))
    beside = Path(folder) / f".failed-{rank}"
    beside.write_text(f"{time.time_ns()} {text}", encoding="utf-8", errors="backslashreplace")
    beside.rename(Path(folder) / f"failed-{rank}")
    return failures[0] if failures else None


def _note_for_torchrun(error: BaseException, file: Path) -> Failure | None:
    """In the file whose error torchrun prints; the files of its ranks on one node lie in folders side by side.

    Of ranks that have ended when it looks, torchrun tells the first by whole seconds, and of a killed one it knows no
    more than that it has ended. So this rank, unless the mistake is the user's, notes its error, with the time, and
    ends only when torchrun has looked.
    """
    if not isinstance(error, UserError):
        time.sleep(_LOOKED_S)
    others = [path for path in file.parent.parent.glob(f"*/{file.name}") if path != file]
    found = sorted((path.stat().st_mtime_ns, path) for path in others)
    if not found:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)
    if not found or isinstance(error, UserError):
        return None
    when, path = found[0]
    try:
        local_rank, told = int(path.parent.name), json.loads(path.read_text(encoding="utf-8"))["message"]["message"]
    except (OSError, ValueError, LookupError, TypeError):
        # one that was killed as it wrote; what this rank raised must not be hidden by it
        return None
    return Failure(int(os.environ["RANK"]) - int(os.environ["LOCAL_RANK"]) + local_rank, when, told)


def noted_failures(folder: Path) -> list[Failure]:
    """The failures noted in a launcher's rendezvous folder, the earliest first."""
    found = []
    for path in folder.glob("failed-*"):
        when, _, error = path.read_text(encoding="utf-8").partition(" ")
        found.append(Failure(int(path.name.removeprefix("failed-")), int(when), error))
    return sorted(found, key=lambda failure: failure.time_ns)
