"""A budget against planted amounts, and its standard errors against the scatter that they stand for."""

import math

import pytest
import torch
from torch import Tensor

from megarl.drift.budget import Budget, part

RESPONSES, TOKENS = 400, 25
SIZES = {"precision": 0.02, "kernel": 0.002, "quantisation": 0.05, "staleness": 0.1}


def rows() -> Tensor:
    """Responses of 1 to 49 tokens."""
    lengths = torch.arange(RESPONSES) % (2 * TOKENS - 1) + 1
    return torch.repeat_interleave(torch.arange(RESPONSES), lengths)


def normal(count: int, size: float, generator: torch.Generator) -> Tensor:
    """Log-ratios whose e^D has mean 1, as those of two distributions have: k3 is then -E[D] = size^2 / 2 exactly."""
    return size * torch.randn(count, dtype=torch.float64, generator=generator) - size**2 / 2


def test_planted_parts_are_found_in_their_amounts() -> None:
    generator, rows_N = torch.Generator().manual_seed(0), rows()
    planted = {name: normal(len(rows_N), size, generator) for name, size in SIZES.items()}
    total_N = torch.stack(list(planted.values())).sum(dim=0)
    budget = Budget(
        part("total", "all", total_N, rows_N),
        tuple(part(name, name, log_ratio_N, rows_N) for name, log_ratio_N in planted.items()),
    )
    for found, size in zip(budget.parts, SIZES.values(), strict=True):
        assert abs(found.k3 - size**2 / 2) < 4 * found.k3_error
        # the mean of |N(-s^2/2, s)| is within s^3 of s sqrt(2 / pi)
        assert abs(found.abs_mean - size * math.sqrt(2 / math.pi)) < 4 * found.abs_mean_error + size**3
        assert found.tokens == len(rows_N)
    # independent causes add up in k3, and leave next to nothing
    assert abs(budget.remainder) < 4 * budget.remainder_error
    shares = [budget.share(found) for found in budget.parts]
    assert sum(shares) + budget.remainder / budget.total.k3 == pytest.approx(1)
    assert shares == pytest.approx([size**2 / sum(s**2 for s in SIZES.values()) for size in SIZES.values()], rel=0.1)


def test_causes_that_cancel_or_go_together_show_in_the_remainder() -> None:
    generator, rows_N = torch.Generator().manual_seed(1), rows()
    one = normal(len(rows_N), 0.05, generator)
    for sign, expected in ((1.0, 0.5), (-1.0, -math.inf)):
        budget = Budget(
            part("total", "", one + sign * one, rows_N), (part("a", "", one, rows_N), part("b", "", sign * one, rows_N))
        )
        found = budget.remainder / budget.total.k3 if budget.total.k3 > 0 else -math.inf
        # twice the log-ratio has four times the k3, to the third order
        assert found == pytest.approx(expected, rel=0.01)
        assert (budget.remainder > 0) == (sign > 0)
    assert math.isnan(budget.share(budget.parts[0]))


def test_standard_errors_are_the_scatter_of_repeated_measurements() -> None:
    """300 draws of 400 responses whose tokens share half of their variance; the scatter's own error is 4 %."""
    generator, rows_N = torch.Generator().manual_seed(2), rows()
    found = []
    for _ in range(300):
        shared_R = 0.1 * torch.randn(RESPONSES, dtype=torch.float64, generator=generator)
        own_N = 0.1 * torch.randn(len(rows_N), dtype=torch.float64, generator=generator)
        found.append(part("", "", shared_R[rows_N] + own_N, rows_N))
    for name in ("abs_mean", "k3"):
        values = torch.tensor([getattr(one, name) for one in found], dtype=torch.float64)
        errors = torch.tensor([getattr(one, f"{name}_error") for one in found], dtype=torch.float64)
        assert float(values.std()) == pytest.approx(float(errors.mean()), rel=0.2)


def test_tokens_without_a_log_prob_are_left_out() -> None:
    rows_N = torch.tensor([0, 0, 1, 2])
    found = part("", "", torch.tensor([0.5, float("nan"), -0.5, float("-inf")]), rows_N)
    assert (found.tokens, found.abs_mean, found.abs_mean_error) == (2, 0.5, 0.0)
    assert found.k3 == pytest.approx((math.exp(0.5) + math.exp(-0.5)) / 2 - 1)
    assert math.isnan(part("", "", torch.tensor([0.1]), torch.tensor([0])).k3_error)
    with pytest.raises(ValueError, match="no token has both log-probs of staleness"):
        part("staleness", "", torch.tensor([float("nan")]), torch.tensor([0]))
