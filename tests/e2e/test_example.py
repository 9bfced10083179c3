"""The example of the plugin surface runs and learns."""

import re
import subprocess
import sys

import pytest

from tests.runs import REPOSITORY, environment

pytestmark = pytest.mark.parallel

EXAMPLE = REPOSITORY / "docs/examples/grpo_in_plain_megatron.py"


def test_grpo_in_plain_megatron() -> None:
    """From the chance level of its reward, .5, to over .9."""
    finished = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=environment(), cwd=REPOSITORY, capture_output=True, text=True, timeout=180
    )
    assert finished.returncode == 0, finished.stderr
    rewards = [float(value) for value in re.findall(r"mean reward ([\d.]+)", finished.stdout)]
    assert len(rewards) == 30
    assert rewards[0] < 0.6
    assert rewards[-1] > 0.9


def test_it_is_short() -> None:
    """At most 80 lines, as its users were promised."""
    assert len(EXAMPLE.read_text().splitlines()) <= 80
