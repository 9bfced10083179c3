"""Time limits in every form that sbatch's manual page has."""

from math import inf

import pytest

from megarl.submit.time_limit import seconds_of

KNOWN = {
    "30": 30 * 60,
    "30:15": 30 * 60 + 15,
    "24:00:00": 24 * 3600,
    "1:02:03": 3723,
    "2-12": (2 * 24 + 12) * 3600,
    "2-12:30": (2 * 24 + 12) * 3600 + 30 * 60,
    "1-00:00:05": 86405,
    "0": inf,
    "0:00:00": inf,
    "unlimited": inf,
    "INFINITE": inf,
}


@pytest.mark.parametrize("text", KNOWN)
def test_a_time_in_seconds(text: str) -> None:
    assert seconds_of(text) == KNOWN[text]


@pytest.mark.parametrize(
    "text",
    ["9" * 400, "1:" + "9" * 5000, "", "1h", "-1", "1:2:3:4", "1-", "1-2-3", "1.5", "1:", ":3", "\u0661", " 3", "3\n"],
)
def test_what_is_no_time(text: str) -> None:
    assert seconds_of(text) is None
