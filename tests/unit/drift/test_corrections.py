"""Rejections and weights against a naive implementation, and what is missing or far out."""

import math
from itertools import combinations

import pytest
import torch
from torch import Tensor

from megarl.drift.corrections import (
    TIS,
    Correction,
    IcePop,
    RejectGeometric,
    RejectK3,
    RejectSequences,
    RejectTokens,
    Rule,
    Veto,
)
from tests.unit.drift.naive_corrections import RULES, WEIGHTINGS, corrected
from tests.unit.objectives.reference import ragged_mask, uniform

ROWS, WIDTH = 16, 6


def drifted(seed: int, scale: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    """Trainer's and engine's log-probs, and a ragged mask; some responses drift much, some little."""
    rollout = uniform(-5, -1, (ROWS, WIDTH), seed)
    by_row = uniform(0.05, scale, (ROWS, 1), seed + 1)
    return rollout + by_row * uniform(-1, 1, (ROWS, WIDTH), seed + 2), rollout, ragged_mask(ROWS, WIDTH, seed)


@pytest.mark.parametrize("rules", [c for n in range(3) for c in combinations(RULES, n)] + [tuple(RULES)])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_correction_is_its_definition(rules: tuple[str, ...], weighting: str) -> None:
    trainer, rollout, mask = drifted(0)
    out = Correction([RULES[name][0] for name in rules], WEIGHTINGS[weighting][0])(trainer, rollout, mask)
    weights, keep = corrected(trainer, rollout, mask, rules, weighting)
    assert torch.equal(out.keep_BT, keep)
    assert out.weights_BT.dtype == torch.float32
    torch.testing.assert_close(out.weights_BT.double(), weights, rtol=1e-6, atol=0.0)
    assert not out.unusable_BT.any()


@pytest.mark.parametrize("name", RULES)
def test_each_rule_keeps_some_and_drops_some(name: str) -> None:
    trainer, rollout, mask = drifted(0)
    keep = Correction([RULES[name][0]])(trainer, rollout, mask).keep_BT
    assert 0 < int(keep.sum()) < int(mask.sum())
    if name != "token":
        assert ((keep == mask).all(dim=1) | ~keep.any(dim=1)).all()


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("side", [0, 1])
def test_missing_log_probs_are_counted_and_are_no_evidence(junk: float, weighting: str, side: int) -> None:
    trainer, rollout, mask = drifted(10)
    missing = mask & (uniform(0, 1, mask.shape, 13) < 0.3)
    missing[1] = mask[1]
    spoilt = [trainer, rollout]
    spoilt[side] = spoilt[side].masked_fill(missing | ~mask, junk)
    out = Correction([rule for rule, _ in RULES.values()], WEIGHTINGS[weighting][0])(*spoilt, mask)
    weights, keep = corrected(trainer, rollout, mask & ~missing, tuple(RULES), weighting)
    assert torch.equal(out.unusable_BT, missing)
    assert torch.equal(out.keep_BT, keep) and keep.any()
    torch.testing.assert_close(out.weights_BT.double(), weights, rtol=1e-6, atol=0.0)


def test_nothing_to_correct() -> None:
    trainer, rollout, mask = drifted(0)
    out = Correction([rule for rule, _ in RULES.values()], TIS())(trainer, rollout, torch.zeros_like(mask))
    assert not out.keep_BT.any() and not out.weights_BT.any() and not out.unusable_BT.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("delta", [40.0, -40.0, 1e4, -1e4])
def test_far_out_everything_is_finite_and_dropped(delta: float, dtype: torch.dtype) -> None:
    rollout, mask = torch.zeros(1, 3, dtype=dtype), torch.ones(1, 3, dtype=torch.bool)
    trainer = rollout + torch.tensor([delta, 0.0, 0.0], dtype=dtype)
    for rule in (RejectSequences(), RejectGeometric(), RejectK3()):
        assert not Correction([rule])(trainer, rollout, mask).keep_BT.any()
    assert Correction([RejectTokens()])(trainer, rollout, mask).keep_BT.tolist() == [[False, True, True]]
    assert bool(Correction([Veto()])(trainer, rollout, mask).keep_BT.any()) is (delta > 0)
    tis, icepop = (
        Correction((), weighting)(trainer, rollout, mask).weights_BT[0, 0] for weighting in (TIS(), IcePop())
    )
    assert tis.item() == pytest.approx(2.0 if delta > 0 else 0.0, abs=1e-8) and icepop.item() == 0


@pytest.mark.parametrize(
    ("rule", "edge"),
    [(RejectTokens(0.5, 2.0), 2.0), (RejectSequences(0.25, 4.0), 2.0), (RejectGeometric(0.5, 2.0), 2.0)],
)
def test_a_low_bound_of_zero_is_none(rule: Rule, edge: float) -> None:
    delta, mask = torch.tensor([[-1e3, -1e3]]), torch.ones(1, 2, dtype=torch.bool)
    assert not rule(delta, mask).any()
    unbounded = type(rule)(0.0, edge)  # type: ignore[call-arg]
    assert unbounded(delta, mask).all() and not unbounded(-delta, mask).any()


def test_a_geometric_bound_does_not_grow_with_length_and_a_sequence_bound_does() -> None:
    short, long = torch.full((1, 2), 0.05), torch.full((1, 100), 0.05)
    for delta in (short, long):
        assert RejectGeometric(0.9, 1.1)(delta, torch.ones_like(delta, dtype=torch.bool)).all()
    kept = [RejectSequences()(delta, torch.ones_like(delta, dtype=torch.bool)).all() for delta in (short, long)]
    assert kept == [True, False]


def test_weights_carry_no_gradient() -> None:
    trainer, rollout, mask = drifted(0)
    for weighting in (TIS(), IcePop()):
        assert not Correction((), weighting)(trainer.requires_grad_(), rollout, mask).weights_BT.requires_grad


def test_no_drift_changes_nothing() -> None:
    _, rollout, mask = drifted(0)
    for weighting in (None, TIS(), IcePop()):
        out = Correction([RejectTokens(), RejectSequences(), RejectGeometric(), RejectK3(), Veto()], weighting)(
            rollout, rollout, mask
        )
        assert torch.equal(out.keep_BT, mask) and torch.equal(out.weights_BT, mask.float())
