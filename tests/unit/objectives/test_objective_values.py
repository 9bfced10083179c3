"""Loss and gradient of every objective against token-by-token references."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from megarl.objectives import GRPO, SFT, Objective, TokenBatch
from tests.unit.objectives.reference import Token, grpo_token, ragged_mask, uniform

ROWS, WIDTH = 5, 7
SHIFTS = {"ratio 1": (0.0,), "e^+-1": (1.0, -1.0), "+-40": (40.0, -40.0), "mixed": (0.0, 0.1, -0.1, 1.0, -1.0, 19, -25)}


def grpo_batch(shifts: tuple[float, ...], seed: int) -> TokenBatch:
    """A float64 batch whose log-ratios, to the old policy and to the reference, go through `shifts`."""
    shape = (ROWS, WIDTH)
    cycle = torch.tensor([shifts[i % len(shifts)] for i in range(ROWS * WIDTH)], dtype=torch.float64).view(shape)
    old = uniform(-3, 0, shape, seed)
    log_probs = (old + cycle).requires_grad_()
    return TokenBatch(
        log_probs_BT=log_probs,
        mask_BT=ragged_mask(ROWS, WIDTH, seed),
        entropy_BT=uniform(0, 3, shape, seed + 1),
        advantages_BT=uniform(-2, 2, shape, seed + 2),
        old_log_probs_BT=old,
        reference_log_probs_BT=old + cycle.flip(0, 1) * 0.9,
    )


def values_and_gradient(objective: Objective, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Loss [B, T] and the gradient of its sum."""
    loss_BT = objective(batch).loss_BT
    return loss_BT.detach(), torch.autograd.grad(loss_BT.sum(), batch.log_probs_BT)[0]


def expected(batch: TokenBatch, token: Callable[..., Token]) -> tuple[Tensor, Tensor]:
    """Loss and gradient by the reference."""
    loss, gradient = torch.zeros(2, ROWS, WIDTH, dtype=torch.float64)
    columns = (batch.log_probs_BT, batch.old_log_probs_BT, batch.reference_log_probs_BT, batch.advantages_BT)
    for row, column in batch.mask_BT.nonzero().tolist():
        result = token(*(tensor[row, column].item() for tensor in columns if tensor is not None))
        loss[row, column], gradient[row, column] = result.loss, result.gradient
    return loss, gradient


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("shifts", SHIFTS.values(), ids=list(SHIFTS))
@pytest.mark.parametrize("seed", [0, 10, 20])
def test_grpo_is_its_formula(beta: float, shifts: tuple[float, ...], seed: int) -> None:
    batch = grpo_batch(shifts, seed)
    loss, gradient = values_and_gradient(GRPO(0.2, 0.28, beta), batch)
    wanted_loss, wanted_gradient = expected(
        batch, lambda log_prob, old, ref, adv: grpo_token(log_prob, old, ref, adv, 0.2, 0.28, beta)
    )
    torch.testing.assert_close(loss, wanted_loss, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-6, atol=1e-12)
    assert loss.isfinite().all() and gradient.isfinite().all()


@pytest.mark.parametrize("log_ratio", [40.0, -40.0, 1e4, -1e4])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_grpo_is_finite_in_single_precision(log_ratio: float, advantage: float) -> None:
    log_probs = torch.tensor([[log_ratio - 1.0]], requires_grad=True)
    other = torch.tensor([[-1.0]])
    mask = torch.ones(1, 1, dtype=torch.bool)
    batch = TokenBatch(log_probs, mask, other, torch.tensor([[advantage]]), other, other, other)
    loss, gradient = values_and_gradient(GRPO(kl_coefficient=0.04), batch)
    assert loss.isfinite().all() and gradient.isfinite().all()


def test_grpo_gradient_at_ratio_one_is_minus_the_advantage() -> None:
    batch = grpo_batch((0.0,), 3)
    _, gradient = values_and_gradient(GRPO(kl_coefficient=0.0), batch)
    assert torch.equal(gradient, torch.where(batch.mask_BT, -batch.advantages_BT, 0.0))  # type: ignore[operator]


@pytest.mark.parametrize("seed", [0, 1])
def test_sft_is_the_negative_log_likelihood(seed: int) -> None:
    batch = grpo_batch((0.0,), seed)
    loss, gradient = values_and_gradient(SFT(), batch)
    wanted_loss, wanted_gradient = expected(batch, lambda log_prob, *_: Token(-log_prob, -1.0))
    assert torch.equal(loss, wanted_loss)
    assert torch.equal(gradient, wanted_gradient)


@pytest.mark.parametrize("objective", [GRPO(kl_coefficient=0.0), GRPO(kl_coefficient=0.04), SFT()])
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_masked_tokens_are_never_read(objective: Objective, junk: float) -> None:
    batch = grpo_batch((0.0, 0.4, -1.0), 5)
    names = ("log_probs_BT", "entropy_BT", "advantages_BT", "old_log_probs_BT", "reference_log_probs_BT")
    spoilt = replace(batch, **{name: getattr(batch, name).detach().masked_fill(~batch.mask_BT, junk) for name in names})
    spoilt.log_probs_BT.requires_grad_()
    clean_loss, clean_gradient = values_and_gradient(objective, batch)
    loss, gradient = values_and_gradient(objective, spoilt)
    assert torch.equal(loss, clean_loss)
    assert torch.equal(gradient, clean_gradient)
    assert (gradient[~batch.mask_BT] == 0).all()
    clean, dirty = objective(batch).metrics, objective(spoilt).metrics
    assert clean.keys() == dirty.keys()
    assert all(torch.equal(a, b) for name in clean for a, b in zip(clean[name], dirty[name], strict=True))


@pytest.mark.parametrize("objective", [GRPO(kl_coefficient=0.04), SFT()])
def test_batch_without_a_trained_token_is_zero(objective: Objective) -> None:
    nothing = torch.full((2, 3), math.nan, dtype=torch.float64)
    batch = TokenBatch(
        nothing.clone().requires_grad_(),
        torch.zeros(2, 3, dtype=torch.bool),
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
    )
    loss, gradient = values_and_gradient(objective, batch)
    assert torch.equal(loss, torch.zeros_like(loss)) and torch.equal(gradient, torch.zeros_like(gradient))
    assert all(float(total) == 0 and float(count) == 0 for total, count in objective(batch).metrics.values())


def test_grpo_metrics_are_sums_over_the_mask() -> None:
    batch = grpo_batch((0.0, 0.3, -0.3), 8)
    metrics = GRPO(0.2, 0.28, 0.0)(batch).metrics
    columns = (batch.log_probs_BT, batch.old_log_probs_BT, batch.advantages_BT)
    tokens = list(zip(*(column[batch.mask_BT].tolist() for column in columns if column is not None), strict=True))
    clipped = sum(
        (adv > 0 and math.exp(new - old) > 1.28) or (adv < 0 and math.exp(new - old) < 0.8) for new, old, adv in tokens
    )
    assert 0 < clipped < len(tokens)
    assert float(metrics["policy/clip_share"][0]) == clipped
    assert float(metrics["policy/ratio_mean"][0]) == pytest.approx(sum(math.exp(new - old) for new, old, _ in tokens))
    assert all(int(count) == len(tokens) for _, count in metrics.values())
    assert not any(total.requires_grad for total, _ in metrics.values())


@pytest.mark.parametrize("missing", ["advantages_BT", "old_log_probs_BT", "reference_log_probs_BT"])
def test_grpo_refuses_to_do_without_its_inputs(missing: str) -> None:
    nothing: dict[str, Any] = {missing: None}
    with pytest.raises(ValueError, match=missing):
        GRPO(kl_coefficient=0.04)(replace(grpo_batch((0.0,), 1), **nothing))
