"""A reward that a test can slow down, or have fail, while a run is under way."""

import os
import time
from pathlib import Path

from megarl.data.problem import Problem
from megarl.rewards.boxed import boxed_answer

SWITCHES = "MEGARL_TEST_SWITCHES"
"""Environment variable with the folder of the switches: files named slow and crash."""


def switched(response: str, problem: Problem) -> float:
    """The demo's own reward."""
    switches = Path(os.environ[SWITCHES])
    if (switches / "slow").exists():
        time.sleep(0.1)
    if (switches / "crash").exists():
        raise RuntimeError("the test has this reward fail")
    return boxed_answer(response, problem)
