"""The KL term in the loss: value and gradient of each estimator, the cap, and what its gradient is in expectation."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megarl.objectives import GRPO, KLPenalty, ObjectiveOutput, TokenBatch
from tests.unit.objectives.batches import SHIFTS, close, identical, shifted_batch, spoilt, value_and_gradient
from tests.unit.objectives.reference import BOUND, uniform

VOCAB = 6


class Nothing:
    """An objective of no loss, so that only the KL is seen."""

    needs: frozenset[str] = frozenset()

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        return ObjectiveOutput(torch.zeros_like(batch.log_probs_BT), {})


def estimate(name: str, x: float) -> tuple[float, float]:
    """Value and gradient coefficient, by the table; k3 is left at x = -20."""
    if name == "k1":
        return x, 1.0
    if name == "k2":
        return x * x / 2, x
    y = max(x, -BOUND)
    return math.expm1(-y) + y, -math.expm1(-x) if x >= -BOUND else 0.0


def weighted_slope(name: str, x: float) -> float:
    """Derivative of r k by log policy, over r."""
    return {"k1": x + 1, "k2": x * x / 2 + x, "k3": x}[name]


def expected(batch: TokenBatch, name: str, beta: float, weighted: bool) -> tuple[Tensor, Tensor]:
    loss, gradient = torch.zeros(2, *batch.mask_BT.shape, dtype=torch.float64)
    for at in map(tuple, batch.mask_BT.nonzero().tolist()):
        log_prob, old, reference = (
            batch.given(which)[at].item() for which in ("log_probs_BT", "old_log_probs_BT", "reference_log_probs_BT")
        )
        value, slope = estimate(name, log_prob - reference)
        if weighted:
            r = math.exp(max(-BOUND, min(BOUND, log_prob - old)))
            slope, value = r * weighted_slope(name, log_prob - reference), r * value
        loss[at], gradient[at] = beta * value, beta * slope
    return loss, gradient


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shifts", SHIFTS.values(), ids=list(SHIFTS))
def test_term_is_its_formula(name: str, weighted: bool, shifts: tuple[float, ...]) -> None:
    batch = shifted_batch(shifts, 9)
    penalty = KLPenalty(Nothing(), 0.04, name, importance_weighted=weighted)
    close(value_and_gradient(penalty, batch), expected(batch, name, 0.04, weighted))


def test_grpo_of_the_paper_is_its_surrogate_plus_beta_k3() -> None:
    batch = shifted_batch(SHIFTS["mixed"], 2)
    whole, plain = value_and_gradient(KLPenalty(GRPO(), 0.04), batch), value_and_gradient(GRPO(), batch)
    terms = expected(batch, "k3", 0.04, False)
    close(whole, (plain[0] + terms[0], plain[1] + terms[1]))


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
@pytest.mark.parametrize("shifts", SHIFTS.values(), ids=list(SHIFTS))
def test_cap_bounds_the_gradient_and_leaves_the_value(name: str, shifts: tuple[float, ...]) -> None:
    batch, cap = shifted_batch(shifts, 9), 0.4
    loss, gradient = value_and_gradient(KLPenalty(Nothing(), 1.0, name, cap=cap), batch)
    assert torch.equal(loss, value_and_gradient(KLPenalty(Nothing(), 1.0, name), batch)[0])
    x = torch.where(batch.mask_BT, batch.log_probs_BT.detach() - batch.given("reference_log_probs_BT"), 0.0)
    table = {"k1": torch.ones_like(x), "k2": x, "k3": -torch.expm1(-x)}[name]
    torch.testing.assert_close(gradient, torch.where(batch.mask_BT, table.clamp(-cap, cap), 0.0), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
@pytest.mark.parametrize("shifts", SHIFTS.values(), ids=list(SHIFTS))
def test_cap_bounds_the_weighted_gradient_whole(name: str, shifts: tuple[float, ...]) -> None:
    """A cap on c alone would leave the gradient of r, k3's e^-x of it with the wrong sign."""
    batch, cap = shifted_batch(shifts, 9), 0.4
    weighted = KLPenalty(Nothing(), 1.0, name, importance_weighted=True)
    loss, gradient = value_and_gradient(replace(weighted, cap=cap), batch)
    assert torch.equal(loss, value_and_gradient(weighted, batch)[0])
    for at in map(tuple, batch.mask_BT.nonzero().tolist()):
        log_prob, old, reference = (
            batch.given(which)[at].item() for which in ("log_probs_BT", "old_log_probs_BT", "reference_log_probs_BT")
        )
        r = math.exp(max(-BOUND, min(BOUND, log_prob - old)))
        slope = max(-cap, min(cap, weighted_slope(name, log_prob - reference)))
        assert gradient[at].item() == pytest.approx(r * slope, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("cap", [None, 10.0])
@pytest.mark.parametrize("x", [-5.0, -15.0, -30.0])
def test_weighted_k3_pulls_a_rare_token_back_up(x: float, cap: float | None) -> None:
    """In fp32, where k3 and its coefficient are both too large to cancel, and beyond the bound of e^-x."""
    log_probs = torch.tensor([[x - 1]], requires_grad=True)
    old, reference = torch.tensor([[x - 1]]), torch.tensor([[-1.0]])
    batch = TokenBatch(log_probs, torch.ones(1, 1, dtype=torch.bool), old, None, old, None, reference)
    penalty = KLPenalty(Nothing(), 1.0, "k3", importance_weighted=True, cap=cap)
    (gradient,) = torch.autograd.grad(penalty(batch).loss_BT.sum(), log_probs)
    assert gradient.item() == max(x, -10.0 if cap else x)


def test_coefficient_zero_measures_and_does_not_train() -> None:
    batch = shifted_batch(SHIFTS["e^+-1"], 3)
    measured = KLPenalty(GRPO(), 0.0)
    output = measured(batch)
    assert torch.equal(output.loss_BT, GRPO()(batch).loss_BT)
    x = (batch.log_probs_BT.detach() - batch.given("reference_log_probs_BT"))[batch.mask_BT]
    assert float(output.metrics["kl/reference_k1"][0]) == pytest.approx(x.sum().item())
    assert float(output.metrics["kl/reference_k3"][0]) == pytest.approx((torch.expm1(-x) + x).sum().item())
    assert "reference_log_probs_BT" not in measured.needs
    assert measured(replace(batch, reference_log_probs_BT=None)).metrics.keys() == GRPO()(batch).metrics.keys()


def test_needs() -> None:
    assert KLPenalty(Nothing(), 0.1).needs == {"reference_log_probs_BT"}
    assert KLPenalty(Nothing(), 0.1, importance_weighted=True).needs == {"reference_log_probs_BT", "old_log_probs_BT"}


def test_the_exact_kl_is_added_as_it_is() -> None:
    batch = shifted_batch(SHIFTS["mixed"], 4)
    exact_BT = torch.where(batch.mask_BT, uniform(0, 3, batch.mask_BT.shape, 8), math.nan).requires_grad_()
    penalty = KLPenalty(Nothing(), 0.04, "full")
    output = penalty(replace(batch, reference_kl_BT=exact_BT))
    assert torch.equal(output.loss_BT, torch.where(batch.mask_BT, 0.04 * exact_BT, 0.0))
    (gradient,) = torch.autograd.grad(output.loss_BT.sum(), exact_BT)
    assert torch.equal(gradient, 0.04 * batch.mask_BT.double())
    total, count = output.metrics["kl/reference_full"]
    assert float(total) == pytest.approx(exact_BT[batch.mask_BT].sum().item()) and int(count) == batch.mask_BT.sum()
    assert penalty.needs == {"reference_log_probs_BT", "reference_kl_BT"}
    with pytest.raises(ValueError, match="needs reference_kl_BT"):
        penalty(batch)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
@pytest.mark.parametrize("cap", [None, 0.4])
def test_bypass_takes_the_engine_for_the_sampler(name: str, cap: float | None) -> None:
    """The ratio is policy / engine, whatever the trainer's old log-probs are."""
    batch = shifted_batch(SHIFTS["mixed"], 9)
    bypass = KLPenalty(Nothing(), 0.04, name, importance_weighted=True, cap=cap, bypass=True)
    by_old = replace(bypass, bypass=False)
    assert bypass.needs == {"reference_log_probs_BT", "rollout_log_probs_BT"}
    engine_as_old = replace(batch, old_log_probs_BT=batch.rollout_log_probs_BT)
    identical(bypass, batch, replace(batch, old_log_probs_BT=None))
    got = value_and_gradient(bypass, batch)
    assert all(torch.equal(*pair) for pair in zip(got, value_and_gradient(by_old, engine_as_old), strict=True))
    assert not torch.allclose(got[0], value_and_gradient(by_old, batch)[0])
    if cap is None:
        close(got, expected(engine_as_old, name, 0.04, weighted=True))


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_token_without_an_engine_log_prob_has_no_term_in_bypass(junk: float) -> None:
    batch = shifted_batch(SHIFTS["e^+-1"], 9)
    bypass = KLPenalty(Nothing(), 0.04, importance_weighted=True, bypass=True)
    missing = torch.zeros_like(batch.mask_BT)
    missing[1, 3] = True
    assert batch.mask_BT[1, 3]
    got = value_and_gradient(bypass, spoilt(batch, missing, junk, ["rollout_log_probs_BT"]))
    wanted = value_and_gradient(bypass, replace(batch, mask_BT=batch.mask_BT & ~missing))
    assert all(torch.equal(*pair) for pair in zip(got, wanted, strict=True))


def test_a_trainer_without_a_log_prob_is_no_silent_zero() -> None:
    batch = shifted_batch(SHIFTS["e^+-1"], 9)
    hole = torch.zeros_like(batch.mask_BT)
    hole[1, 3] = True
    weighted = KLPenalty(Nothing(), 0.04, importance_weighted=True)
    assert weighted(spoilt(batch, hole, math.nan, ["old_log_probs_BT"])).loss_BT[1, 3].isnan()


def test_large_coefficients_are_counted() -> None:
    old = torch.full((1, 3), -5.0, dtype=torch.float64)
    reference = old + torch.tensor([[4.0, 2.0, 0.0]])
    batch = TokenBatch(
        old.clone().requires_grad_(), torch.ones(1, 3, dtype=torch.bool), old, None, old, None, reference
    )
    metrics = KLPenalty(Nothing(), 0.1)(batch).metrics
    assert [float(value) for value in metrics["kl/coefficient_above_10_share"]] == [1, 3]
    assert float(metrics["kl/coefficient_abs"][0]) == pytest.approx(math.expm1(4) + math.expm1(2))


def logits(seed: int) -> Tensor:
    return uniform(-2, 2, (VOCAB,), seed)


def expected_gradient(penalty: KLPenalty, policy: Tensor, sampler: Tensor, reference: Tensor) -> Tensor:
    """Gradient by the policy's logits of the term's expectation over tokens of `sampler`, by enumerating them.

    In bypass mode the sampler is the engine, and the trainer's old policy is another one.
    """
    policy = policy.clone().requires_grad_()
    log_probs = policy.log_softmax(-1)[:, None]
    old, ref = (other.log_softmax(-1)[:, None] for other in (sampler, reference))
    mask, other = torch.ones_like(old, dtype=torch.bool), old + uniform(-1, 1, old.shape, 3)
    sampled = (other, old) if penalty.bypass else (old, other)
    batch = TokenBatch(log_probs, mask, old, None, *sampled, ref)
    (gradient,) = torch.autograd.grad((penalty(batch).loss_BT * old.exp()).sum(), policy)
    return gradient


def divergence_gradient(policy: Tensor, reference: Tensor, *, reverse: bool) -> Tensor:
    policy = policy.clone().requires_grad_()
    p, q = policy.log_softmax(-1), reference.log_softmax(-1)
    kl = (p.exp() * (p - q)).sum() if reverse else (q.exp() * (q - p)).sum()
    (gradient,) = torch.autograd.grad(kl, policy)
    return gradient


@pytest.mark.parametrize("seed", [0, 10, 20])
def test_on_policy_gradients_are_those_of_the_table(seed: int) -> None:
    policy, reference = logits(seed), logits(seed + 1)
    reverse, forward = (divergence_gradient(policy, reference, reverse=side) for side in (True, False))
    assert not torch.allclose(reverse, forward, rtol=0.1)
    got = {k: expected_gradient(KLPenalty(Nothing(), 1.0, k), policy, policy, reference) for k in ("k1", "k2", "k3")}
    torch.testing.assert_close(got["k1"], torch.zeros(VOCAB, dtype=torch.float64), rtol=0.0, atol=1e-12)
    torch.testing.assert_close(got["k2"], reverse)
    torch.testing.assert_close(got["k3"], forward)


@pytest.mark.parametrize("name", ["k1", "k3"])
@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("bypass", [False, True])
def test_importance_weighted_gradient_is_the_reverse_kls(name: str, off_policy: bool, bypass: bool) -> None:
    policy, reference = logits(5), logits(6)
    sampler = logits(7) if off_policy else policy
    penalty = KLPenalty(Nothing(), 1.0, name, importance_weighted=True, bypass=bypass)
    got = expected_gradient(penalty, policy, sampler, reference)
    torch.testing.assert_close(got, divergence_gradient(policy, reference, reverse=True))
