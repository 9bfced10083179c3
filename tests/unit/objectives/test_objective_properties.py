"""What sets GSPO, CISPO, K2.5, DPPO and dual clip apart from PPO."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megarl.objectives import CISPO, DPPOTV, GSPO, K25, PPO, Objective, TokenBatch
from tests.unit.objectives.batches import SHIFTS, shifted_batch, value_and_gradient


def one_row(log_ratios: list[float], advantage: float, base: float = -2.0) -> TokenBatch:
    """One response whose tokens have these log-ratios to old and rollout policy alike."""
    x = torch.tensor([log_ratios], dtype=torch.float64)
    old = torch.full_like(x, base)
    mask, advantages = torch.ones_like(x, dtype=torch.bool), torch.full_like(x, advantage)
    return TokenBatch((old + x).requires_grad_(), mask, x, advantages, old, old, old)


def gradient_of(objective: Objective, log_ratios: list[float], advantage: float, base: float = -2.0) -> Tensor:
    return value_and_gradient(objective, one_row(log_ratios, advantage, base))[1][0]


@pytest.mark.parametrize("shifts", SHIFTS.values(), ids=list(SHIFTS))
def test_no_token_loses_its_gradient_under_cispo(shifts: tuple[float, ...]) -> None:
    batch = shifted_batch(shifts, 4)
    _, gradient = value_and_gradient(CISPO(), batch)
    assert (gradient[batch.mask_BT] * batch.given("advantages_BT")[batch.mask_BT] < 0).all()
    assert (gradient.abs() <= 5 * batch.given("advantages_BT").abs()).all()


@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_k2_5_has_no_policy_gradient_outside_its_band_whatever_the_sign(advantage: float) -> None:
    objective = K25(0.9, 1.1, tau=0.0)
    outside = gradient_of(objective, [math.log(0.89), math.log(1.11), 3.0, -3.0], advantage)
    assert not outside.any()
    inside = gradient_of(objective, [math.log(0.91), math.log(1.09), 0.0], advantage)
    torch.testing.assert_close(inside, -advantage * torch.tensor([0.91, 1.09, 1.0], dtype=torch.float64))
    # PPO keeps one of the two sides
    assert gradient_of(PPO(0.1, 0.1), [math.log(0.89), math.log(1.11)], advantage).count_nonzero() == 1


def test_k2_5_pulls_back_from_any_distance() -> None:
    x = [0.5, -0.5, 25.0, -40.0]
    pull = gradient_of(K25(tau=0.01), x, 1.0)
    torch.testing.assert_close(pull, 0.02 * torch.tensor(x, dtype=torch.float64), rtol=1e-12, atol=0.0)


def test_gspo_clips_a_response_as_a_whole() -> None:
    # one token far out, and the response's geometric mean inside the band: every token stays, at the response's ratio
    inside = gradient_of(GSPO(0.2, 0.2), [0.6, -0.5, 0.0, 0.0], 1.0)
    torch.testing.assert_close(inside, torch.full((4,), -math.exp(0.1 / 4), dtype=torch.float64))
    assert not gradient_of(GSPO(0.2, 0.2), [0.9, 0.0, 0.0, 0.0], 1.0).any()
    assert gradient_of(GSPO(0.2, 0.2), [0.9, 0.0, 0.0, 0.0], -1.0).all()


def test_gspo_ratio_does_not_grow_with_length() -> None:
    short, long = gradient_of(GSPO(0.2, 0.2), [0.1] * 2, 1.0), gradient_of(GSPO(0.2, 0.2), [0.1] * 50, 1.0)
    torch.testing.assert_close(short[0], long[0])


def test_gspo_mean_is_over_trained_tokens() -> None:
    batch = one_row([0.1, 5.0, 0.1], 1.0)
    mask = torch.tensor([[True, False, True]])
    _, gradient = value_and_gradient(GSPO(0.2, 0.2), replace(batch, mask_BT=mask))
    torch.testing.assert_close(gradient[0], torch.tensor([-math.exp(0.1), 0.0, -math.exp(0.1)], dtype=torch.float64))


def test_dppo_goes_by_probability_not_ratio() -> None:
    # a rare token grows 50-fold and stays; a likely one grows by half and goes, in its advantage's direction alone
    rare, likely = math.log(1e-3), math.log(0.5)
    assert gradient_of(DPPOTV(0.2), [math.log(50)], 1.0, rare).item() == pytest.approx(-50)
    assert gradient_of(DPPOTV(0.2), [math.log(1.5)], 1.0, likely).item() == 0
    assert gradient_of(DPPOTV(0.2), [math.log(1.5)], -1.0, likely).item() == pytest.approx(1.5)
    assert gradient_of(DPPOTV(0.2), [math.log(0.5)], -1.0, likely).item() == 0


def test_dual_clip_bounds_negative_advantages_alone() -> None:
    x = [math.log(2.9), math.log(3.1)]
    loss, gradient = value_and_gradient(PPO(dual_clip=3.0), one_row(x, -2.0))
    torch.testing.assert_close(loss[0], torch.tensor([5.8, 6.0], dtype=torch.float64))
    torch.testing.assert_close(gradient[0], torch.tensor([5.8, 0.0], dtype=torch.float64))
    positive = [value_and_gradient(PPO(dual_clip=c), one_row([-0.5, *x], 2.0)) for c in (3.0, None)]
    assert all(torch.equal(a, b) for a, b in zip(*positive, strict=True))
