"""A reward that a test can have wait, or fail, while a run is under way."""

import os
import signal
import time
from itertools import count
from pathlib import Path

from megarl.data.problem import Problem
from megarl.rewards.boxed import boxed_answer

SWITCHES = "MEGARL_TEST_SWITCHES"
"""Environment variable with the folder of the switches: files named hold and crash."""
_calls = count()


def switched(response: str, problem: Problem) -> float:
    """The demo's own reward. From the call on whose number is in the file `hold` it waits until that file is gone, or
    until a signal asked the run to stop; where there is a file `crash` it fails."""
    switches = Path(os.environ[SWITCHES])
    call = next(_calls)
    while _held_from(switches / "hold") <= call and not _is_asked_to_stop():
        time.sleep(0.05)
    if (switches / "crash").exists():
        raise RuntimeError("the test has this reward fail")
    return boxed_answer(response, problem)


def _held_from(file: Path) -> float:
    try:
        return float(file.read_text())
    except FileNotFoundError:
        return float("inf")


def _is_asked_to_stop() -> bool:
    # the trainer's own flag, whose method is the handler
    flag = getattr(signal.getsignal(signal.SIGUSR1), "__self__", None)
    return bool(flag and flag.signal_number)
