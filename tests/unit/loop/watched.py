"""A rank that watches itself as a trainer's does, for test_watchdog."""

import ctypes
import time
from pathlib import Path

from megarl.loop.watchdog import WATCHDOG, phase


def hang_here(holds_python: bool) -> None:
    if holds_python:
        ctypes.PyDLL(None).sleep(600)
    time.sleep(600)


def watched(folder: Path, rank: int, limit_s: float | None, what: str, ranks: int) -> int:
    """Waits until as many ranks watch, by files in the folder beside the run's; then ends, or hangs in a phase."""
    WATCHDOG.arm(folder, rank, limit_s)
    armed = folder.with_name("armed")
    (armed / str(rank)).touch()
    while len(list(armed.iterdir())) < ranks:
        time.sleep(0.01)
    with phase("rollout"):
        pass
    if what == "ends":
        WATCHDOG.disarm()
    else:
        with phase("update"):
            hang_here(what == "holds python")
    return 0
