"""Steps that teach nothing, by their metrics."""

import pytest

from megarl.config.training import RLConfig
from megarl.loop.alarm import why_idle

BUSY = {"response/untrained_share": 0.5, "reward/uniform_groups_share": 0.5, "correction/kept_share": 0.5}
IDLE = {
    "drift/skipped_updates": (1.0, "drift was beyond a bound of drift.skip_update"),
    "response/untrained_share": (1.0, "no response had a token left"),
    "correction/kept_share": (0.0, "the correction dropped every token"),
    "reward/uniform_groups_share": (1.0, "got the same reward"),
}


@pytest.mark.parametrize("name", IDLE)
def test_the_reason_is_named(name: str) -> None:
    value, reason = IDLE[name]
    assert reason in (why_idle(RLConfig(), {**BUSY, name: value}) or "")


def test_a_step_that_teaches_has_no_reason() -> None:
    assert why_idle(RLConfig(), BUSY) is None
    without_correction = {name: value for name, value in BUSY.items() if name != "correction/kept_share"}
    assert why_idle(RLConfig(), without_correction) is None


def test_equal_rewards_teach_where_the_group_is_not_the_baseline() -> None:
    uniform = {**BUSY, "reward/uniform_groups_share": 1.0}
    assert why_idle(RLConfig(advantage="grpo"), uniform) is not None
    assert why_idle(RLConfig(advantage="reinforce_pp"), uniform) is None


def test_the_nearest_reason_comes_first() -> None:
    """Responses that are all cut off also have equal rewards; a bound on drift acts before either counts."""
    every = {name: value for name, (value, _) in IDLE.items()}
    assert "drift was beyond a bound" in (why_idle(RLConfig(), every) or "")
    del every["drift/skipped_updates"]
    assert "no response had a token left" in (why_idle(RLConfig(), every) or "")
