"""Rounded logits are on their grid, others are not, and where a normaliser's noise hides it neither is said."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megarl.drift.diagnosis.computation import Dtype
from megarl.drift.diagnosis.grid import Grid, Scored

TOKENS, VOCAB = 600, 96
DTYPES: dict[Dtype, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def scored(logits_NV: Tensor, drawn_N1: Tensor, temperature: float) -> Scored:
    """Of the tokens drawn."""
    log_probs_NV = (logits_NV / temperature).log_softmax(dim=1)
    return Scored(logits_NV.gather(1, drawn_N1)[:, 0], log_probs_NV.gather(1, drawn_N1)[:, 0])


def grid(dtype: Dtype, temperature: float, noise: float, *, rounds: bool) -> Grid:
    """A side with errors of its own before the output layer, as large as the model's, each of this deviation."""
    generator = torch.Generator().manual_seed(0)
    exact_NV, own_NV, other_NV = (
        torch.randn(TOKENS, VOCAB, generator=generator, dtype=torch.float64) * scale for scale in (3.0, noise, noise)
    )
    wide_NV, side_NV = exact_NV + own_NV, exact_NV + other_NV
    drawn_N1 = torch.multinomial((exact_NV / temperature).softmax(dim=1), 1, generator=generator)

    def of(logits_NV: Tensor, *, rounded: bool = False) -> Scored:
        return scored(logits_NV.to(DTYPES[dtype]).double() if rounded else logits_NV, drawn_N1, temperature)

    scorings = {"wide": of(wide_NV), "rounded": of(wide_NV, rounded=True), "exact": of(exact_NV)}
    log_probs_N = of(side_NV, rounded=rounds).log_probs_N.clone()
    log_probs_N[:7] = float("nan")
    return Grid.of(log_probs_N, temperature, dtype, **scorings)


@pytest.mark.parametrize(
    ("dtype", "temperature", "noise"), [("bf16", 1.0, 4e-3), ("bf16", 0.7, 4e-3), ("fp16", 1.0, 5e-4)]
)
def test_a_side_that_rounds_is_told_from_one_that_does_not(dtype: Dtype, temperature: float, noise: float) -> None:
    on, off = (grid(dtype, temperature, noise, rounds=rounds) for rounds in (True, False))
    assert on.is_on and not on.is_off
    assert off.is_off and not off.is_on
    # of a side that rounds the mean is what the model's own normaliser makes of it, within chance
    assert abs(on.found - on.expected) < 4 * on.error


def test_noise_beyond_the_spacing_tells_nothing() -> None:
    hidden = grid("bf16", 1.0, 1.0, rounds=True)
    assert not hidden.is_on and not hidden.is_off


def test_both_at_once_is_on() -> None:
    doubtful = replace(grid("bf16", 1.0, 0.01, rounds=True), found=0.2, expected=0.9)
    assert doubtful.is_on and not doubtful.is_off


def test_a_logit_of_0_tells_nothing() -> None:
    """It is on every grid, and has no spacing."""
    logits_N = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    same = Scored(logits_N, logits_N)
    assert Grid.of(logits_N, 1.0, "bf16", wide=same, rounded=same, exact=same).found == pytest.approx(1.0)
