"""Delayed scaling: whose largest values a scale comes from."""

import pytest
import torch

from megarl.platform.fp8.cast import E4M3
from megarl.platform.fp8.delayed import DelayedScale


def updates(scale: DelayedScale, *tops: float) -> list[float]:
    """448 over the scale after each update of that largest value."""
    seen = []
    for top in tops:
        scale(torch.tensor([0.1, -top]), record=True)
        scale.advance()
        seen.append(448 / scale.scale.item())
    return seen


def test_the_largest_of_the_history() -> None:
    assert updates(DelayedScale(3, "max", E4M3), 1, 4, 2, 2, 2) == pytest.approx([1, 4, 4, 4, 2])


def test_the_most_recent() -> None:
    assert updates(DelayedScale(3, "most_recent", E4M3), 1, 4, 2) == pytest.approx([1, 4, 2])


def test_an_updates_scale_is_that_of_the_updates_before() -> None:
    """Whatever its own values and however many micro-batches it has."""
    scale = DelayedScale(2, "max", E4M3)
    updates(scale, 2)
    used = [scale(torch.tensor([top]), record=True).item() for top in (8.0, 16.0, 4.0)]
    assert used == [224.0] * 3
    scale.advance()
    assert scale.history_H.tolist() == [16.0, 2.0]


def test_without_a_history_its_own_largest_value() -> None:
    scale = DelayedScale(2, "max", E4M3)
    assert scale(torch.tensor([4.0]), record=False).item() == 112.0
    assert scale.pending == 0


def test_zero_and_infinity_leave_the_scale() -> None:
    scale = DelayedScale(1, "max", E4M3)
    assert updates(scale, 2, 0.1, float("inf"), 3) == pytest.approx([2, 0.1, 0.1, 3])
    before = scale.scale.item()
    scale(torch.zeros(2), record=True)
    scale.advance()
    assert scale.scale.item() == before
