"""What a process that megarl starts has of the one that starts it. Imports nothing heavy."""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import megarl

_PR_SET_PDEATHSIG = 1
# loaded here: between fork and exec is no place for it
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent dies, so that kill -9 on that leaves no orphan.

    SIGKILL, since a process that is stopped or stuck in C code answers nothing else. On Linux; elsewhere nothing.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def python_path(inherited: Mapping[str, str]) -> str:
    """PYTHONPATH for a child: the very package that runs here, wherever it was imported from, before what was there."""
    return os.pathsep.join(filter(None, [str(Path(megarl.__file__).parents[1]), inherited.get("PYTHONPATH")]))
