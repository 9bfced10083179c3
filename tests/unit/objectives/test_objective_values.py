"""Loss and gradient of every objective against token-by-token references."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from megarl.objectives import GRPO, OBJECTIVES, SFT, EntropyBonus, KLPenalty, Objective, TokenBatch
from tests.unit.objectives.batches import CASES, SHIFTS, by_reference, close, shifted_batch, value_and_gradient
from tests.unit.objectives.reference import Row, Token, each


@pytest.mark.parametrize(("objective", "row"), CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("shifts", SHIFTS.values(), ids=list(SHIFTS))
@pytest.mark.parametrize("seed", [0, 10, 20])
def test_objective_is_its_formula(objective: Objective, row: Row, shifts: Sequence[float], seed: int) -> None:
    batch = shifted_batch(shifts, seed)
    close(value_and_gradient(objective, batch), by_reference(row, batch))


def test_every_registered_objective_has_a_case() -> None:
    assert {type(objective) for objective, _ in CASES.values()} == set(OBJECTIVES.values())


@pytest.mark.parametrize(("objective", "_"), CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("log_ratio", [40.0, -40.0, 1e4, -1e4])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_finite_in_single_precision(objective: Objective, _: Row, log_ratio: float, advantage: float) -> None:
    other = torch.tensor([[-1.0 - max(log_ratio, 0.0)]])
    log_probs = (other + log_ratio).requires_grad_()
    batch = TokenBatch(
        log_probs, torch.ones(1, 1, dtype=torch.bool), other, torch.tensor([[advantage]]), other, other, other
    )
    for selected in (False, True):
        batch = replace(batch, selected_BT=torch.tensor([[selected]]))
        for whole in (objective, KLPenalty(objective, 0.04)):
            loss, gradient = value_and_gradient(whole, batch)
            assert loss.isfinite().all() and gradient.isfinite().all()


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "reinforce"])
def test_gradient_on_policy_is_minus_the_advantage(name: str) -> None:
    batch = shifted_batch((0.0,), 3)
    _, gradient = value_and_gradient(OBJECTIVES[name](), batch)
    kept_BT = batch.mask_BT & ~batch.given("selected_BT") if name == "clip_cov" else batch.mask_BT
    assert torch.equal(gradient, torch.where(kept_BT, -batch.given("advantages_BT"), 0.0))


def test_reinforce_is_minus_the_advantage_at_any_ratio() -> None:
    batch = shifted_batch(SHIFTS["+-40"], 3)
    _, gradient = value_and_gradient(OBJECTIVES["reinforce"](), batch)
    assert torch.equal(gradient, torch.where(batch.mask_BT, -batch.given("advantages_BT"), 0.0))


def test_sft_is_the_negative_log_likelihood() -> None:
    batch = shifted_batch((0.0,), 1)
    close(value_and_gradient(SFT(), batch), by_reference(each(lambda s: Token(-s.log_prob, -1.0)), batch), rtol=0.0)


def test_entropy_bonus_is_taken_off_with_its_gradient() -> None:
    batch = shifted_batch((0.0, 0.4), 2)
    entropy = batch.entropy_BT.clone().requires_grad_()
    batch = replace(batch, entropy_BT=entropy)
    output, plain = EntropyBonus(GRPO(), 0.3)(batch), GRPO()(batch)
    torch.testing.assert_close(output.loss_BT, plain.loss_BT - 0.3 * entropy * batch.mask_BT)
    (gradient,) = torch.autograd.grad(output.loss_BT.sum(), entropy)
    torch.testing.assert_close(gradient, -0.3 * batch.mask_BT.double())
    total, count = output.metrics["policy/entropy"]
    assert float(total) == pytest.approx(entropy[batch.mask_BT].sum().item()) and int(count) == int(batch.mask_BT.sum())
    assert torch.equal(EntropyBonus(GRPO())(batch).loss_BT, plain.loss_BT)


def test_clip_share_and_ratio_are_sums_over_the_mask() -> None:
    batch = shifted_batch((0.0, 0.3, -0.3), 8)
    metrics = EntropyBonus(GRPO(0.2, 0.28))(batch).metrics
    columns = (batch.log_probs_BT, batch.given("old_log_probs_BT"), batch.given("advantages_BT"))
    tokens = list(zip(*(column[batch.mask_BT].tolist() for column in columns), strict=True))
    clipped = sum(
        (adv > 0 and math.exp(new - old) > 1.28) or (adv < 0 and math.exp(new - old) < 0.8) for new, old, adv in tokens
    )
    assert 0 < clipped < len(tokens)
    assert float(metrics["policy/clip_share"][0]) == clipped
    assert float(metrics["policy/ratio_mean"][0]) == pytest.approx(sum(math.exp(new - old) for new, old, _ in tokens))
    assert all(int(count) == len(tokens) for _, count in metrics.values())
    assert not any(total.requires_grad for total, _ in metrics.values())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_needs_are_exactly_what_is_read(name: str) -> None:
    objective = OBJECTIVES[name]()
    batch = shifted_batch((0.0, 0.1), 1)
    optional = ("advantages_BT", "old_log_probs_BT", "rollout_log_probs_BT", "reference_log_probs_BT", "selected_BT")
    for tensor in optional:
        without: dict[str, Any] = {tensor: None}
        if tensor in objective.needs:
            with pytest.raises(ValueError, match=tensor):
                objective(replace(batch, **without))
        else:
            assert torch.equal(objective(replace(batch, **without)).loss_BT, objective(batch).loss_BT)


def test_a_policy_gradient_keeps_its_direction_in_single_precision() -> None:
    batch = shifted_batch(SHIFTS["e^+-1"], 4)
    names = ("advantages_BT", "old_log_probs_BT", "rollout_log_probs_BT")
    single = replace(
        batch,
        log_probs_BT=batch.log_probs_BT.detach().float().requires_grad_(),
        **{name: batch.given(name).float() for name in names},
    )
    for name, (objective, row) in CASES.items():
        if "gspo" in name:
            continue
        loss, gradient = value_and_gradient(objective, single)
        wanted_loss, wanted_gradient = by_reference(row, single)
        torch.testing.assert_close(loss.double(), wanted_loss, rtol=1e-5, atol=1e-6, msg=name)
        torch.testing.assert_close(gradient.double(), wanted_gradient, rtol=1e-5, atol=1e-6, msg=name)
