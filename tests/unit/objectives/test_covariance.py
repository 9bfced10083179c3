"""Covariances of tokens and the selections by them, against slow references in Python floats."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from megarl.objectives.covariance import (
    named_generator,
    quota,
    select_between,
    select_largest,
    token_covariance,
)
from tests.unit.objectives.reference import ragged_mask, uniform

ROWS, WIDTH = 9, 23
SEEDS = (0, 1, 2)

Select = Callable[[Tensor, Tensor], Tensor]


def select_all_between(covariance_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return select_between(covariance_BT, mask_BT, 0.2, 1.0, 1.0, named_generator("x"))


def select_few_between(covariance_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return select_between(covariance_BT, mask_BT, -0.5, 0.5, 0.1, named_generator("x"))


def select_few_largest(covariance_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return select_largest(covariance_BT, mask_BT, 0.1)


SELECTIONS: dict[str, Select] = {
    "all between": select_all_between,
    "few between": select_few_between,
    "few largest": select_few_largest,
}


def tokens(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, advantages and mask, the first two in single precision as a run has them."""
    shape = (ROWS, WIDTH)
    mask_BT = ragged_mask(ROWS, WIDTH, seed)
    return uniform(-4, 0, shape, seed).float(), uniform(-2, 2, shape, seed + 1).float(), mask_BT


def slow_covariance(log_probs: list[float], advantages: list[float]) -> list[float]:
    """The formula, exactly, in fractions."""
    rows = [[Fraction(value) for value in values] for values in (log_probs, advantages)]
    means = [sum(row) / len(row) for row in rows]
    return [float((x - means[0]) * (a - means[1])) for x, a in zip(*rows, strict=True)]


@pytest.mark.parametrize("seed", SEEDS)
def test_covariance_is_the_formula(seed: int) -> None:
    log_probs_BT, advantages_BT, mask_BT = tokens(seed)
    covariance_BT = token_covariance(log_probs_BT.requires_grad_(), advantages_BT, mask_BT)
    wanted = slow_covariance(log_probs_BT[mask_BT].tolist(), advantages_BT[mask_BT].tolist())
    # means of some hundred numbers below 4, in double precision
    torch.testing.assert_close(covariance_BT[mask_BT].tolist(), wanted, rtol=1e-12, atol=1e-12)
    assert covariance_BT.dtype == torch.float64 and not covariance_BT.requires_grad
    assert not covariance_BT[~mask_BT].any()


def test_mean_covariance_is_that_of_the_two_columns() -> None:
    log_probs_BT, advantages_BT, mask_BT = tokens(3)
    columns = torch.stack([log_probs_BT[mask_BT].double(), advantages_BT[mask_BT].double()])
    mean = token_covariance(log_probs_BT, advantages_BT, mask_BT)[mask_BT].mean()
    torch.testing.assert_close(mean, torch.cov(columns, correction=0)[0, 1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 7.0])
@pytest.mark.parametrize("select", SELECTIONS.values(), ids=list(SELECTIONS))
def test_hidden_tokens_are_never_read(select: Select, junk: float) -> None:
    log_probs_BT, advantages_BT, mask_BT = tokens(4)
    covariance_BT = token_covariance(log_probs_BT, advantages_BT, mask_BT)
    other_BT = token_covariance(
        log_probs_BT.masked_fill(~mask_BT, junk), advantages_BT.masked_fill(~mask_BT, junk), mask_BT
    )
    assert torch.equal(covariance_BT, other_BT)
    selected_BT = select(covariance_BT, mask_BT)
    assert torch.equal(selected_BT, select(covariance_BT.masked_fill(~mask_BT, junk), mask_BT))
    assert selected_BT.any() and not (selected_BT & ~mask_BT).any()


@pytest.mark.parametrize("share", [1e-4, 0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_largest_are_those_of_a_sort(share: float, seed: int) -> None:
    *columns, mask_BT = tokens(seed)
    covariance_BT = token_covariance(*columns, mask_BT)
    values = covariance_BT[mask_BT].tolist()
    count = max(math.floor(share * len(values)), 1)
    wanted = sorted(range(len(values)), key=lambda index: (-values[index], index))[:count]
    assert select_largest(covariance_BT, mask_BT, share)[mask_BT].nonzero()[:, 0].tolist() == sorted(wanted)


@pytest.mark.parametrize(("low", "high"), [(0.2, 1.0), (-0.5, 0.5), (1.0, 5.0), (100.0, 200.0)])
@pytest.mark.parametrize("share", [1e-4, 0.1, 1.0])
def test_the_drawn_are_those_of_the_smallest_numbers_in_the_band(low: float, high: float, share: float) -> None:
    *columns, mask_BT = tokens(5)
    covariance_BT = token_covariance(*columns, mask_BT)
    values = covariance_BT[mask_BT].tolist()
    draws = torch.rand(len(values), dtype=torch.float64, generator=named_generator("draw")).tolist()
    inside = sorted((index for index, value in enumerate(values) if low <= value <= high), key=lambda i: draws[i])
    wanted = inside[: max(math.floor(share * len(values)), 1)]
    selected_BT = select_between(covariance_BT, mask_BT, low, high, share, named_generator("draw"))
    assert selected_BT[mask_BT].nonzero()[:, 0].tolist() == sorted(wanted)


def test_every_token_of_the_band_is_drawn_as_often() -> None:
    """Of 20 tokens in the band 5 are drawn, 2000 times over: 500 draws a token, within 6 standard deviations."""
    covariance_BT = torch.arange(40, dtype=torch.float64).view(4, 10)
    mask_BT = torch.ones(4, 10, dtype=torch.bool)
    counts_BT = torch.zeros(4, 10)
    for trial in range(2000):
        counts_BT += select_between(covariance_BT, mask_BT, 10, 29, 0.125, named_generator(str(trial)))
    inside_BT = (covariance_BT >= 10) & (covariance_BT <= 29)
    assert counts_BT.sum() == 5 * 2000 and not counts_BT[~inside_BT].any()
    assert (counts_BT[inside_BT] - 500).abs().max() < 6 * math.sqrt(2000 * 0.25 * 0.75)


def test_the_name_decides_what_is_drawn() -> None:
    *columns, mask_BT = tokens(6)
    covariance_BT = token_covariance(*columns, mask_BT)
    once, again, other = (
        select_between(covariance_BT, mask_BT, -9, 9, 0.3, named_generator(name)) for name in ("1", "1", "2")
    )
    assert torch.equal(once, again) and not torch.equal(once, other)


def test_the_padding_changes_nothing() -> None:
    """Wider rows hold the same tokens, which are selected alike."""
    log_probs_BT, advantages_BT, mask_BT = tokens(7)
    narrow = (log_probs_BT, advantages_BT, mask_BT)
    wide = tuple(torch.nn.functional.pad(tensor, (0, 11)) for tensor in narrow)
    for select in SELECTIONS.values():
        selected_BT = select(token_covariance(*narrow), mask_BT)
        assert torch.equal(select(token_covariance(*wide), wide[2])[:, :WIDTH], selected_BT)


def test_the_earlier_of_equal_tokens_is_selected() -> None:
    mask_BT = torch.tensor([[False, True, True], [True, True, True]])
    selected_BT = select_largest(torch.zeros(2, 3, dtype=torch.float64), mask_BT, 0.5)
    assert selected_BT.tolist() == [[False, True, True], [False, False, False]]


@pytest.mark.parametrize("select", SELECTIONS.values(), ids=list(SELECTIONS))
def test_no_trained_token_selects_none(select: Select) -> None:
    nothing_BT = torch.zeros(2, 3, dtype=torch.bool)
    covariance_BT = token_covariance(torch.full((2, 3), math.nan), torch.full((2, 3), math.nan), nothing_BT)
    assert not covariance_BT.any()
    assert not select(covariance_BT, nothing_BT).any()
    assert not select(torch.zeros(0, 0, dtype=torch.float64), torch.zeros(0, 0, dtype=torch.bool)).any()


def test_one_trained_token_has_no_covariance() -> None:
    mask_BT = torch.tensor([[False, True]])
    covariance_BT = token_covariance(torch.tensor([[math.nan, -3.0]]), torch.tensor([[math.nan, 2.0]]), mask_BT)
    assert covariance_BT.tolist() == [[0.0, 0.0]]
    # one token at least is held, and none is in a band above 0
    assert torch.equal(select_largest(covariance_BT, mask_BT, 1e-4), mask_BT)
    assert not select_between(covariance_BT, mask_BT, 1.0, 5.0, 1.0, named_generator("x")).any()


@pytest.mark.parametrize(
    ("trained", "share", "tokens"),
    [(0, 1.0, 0), (1, 1e-4, 1), (4999, 2e-4, 1), (5000, 2e-4, 1), (9999, 2e-4, 1), (10000, 2e-4, 2), (7, 1.0, 7)],
)
def test_the_quota_is_rounded_down_to_one_at_least(trained: int, share: float, tokens: int) -> None:
    mask_BT = torch.zeros(1, 10000, dtype=torch.bool)
    mask_BT[0, :trained] = True
    assert quota(mask_BT, share) == tokens
