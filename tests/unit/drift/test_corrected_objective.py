"""Every objective under every rejection and weighting, in both modes, against the naive implementations of both."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megarl.drift.corrections import OPSM, TIS, CorrectedObjective, Correction, RejectSequences
from megarl.objectives import GRPO, GSPO, KLPenalty, Reinforce, TokenBatch
from tests.unit.drift.naive_corrections import RULES, WEIGHTINGS, corrected
from tests.unit.objectives.batches import (
    CASES,
    SHIFTS,
    by_reference,
    close,
    identical,
    shifted_batch,
    spoilt,
    value_and_gradient,
)

MILD = (0.0, 0.05, -0.05, 0.3, -0.3, 0.01, 0.02, -0.8)
OWN_CORRECTION = ("decoupled_ppo", "dppo_tv")


def fits(name: str, weighting: str, bypass: bool) -> bool:
    """What a recipe may combine."""
    return not (name in OWN_CORRECTION and weighting != "none") and not (name == "decoupled_ppo" and bypass)


def expected(
    name: str, batch: TokenBatch, rules: tuple[str, ...], weighting: str, bypass: bool
) -> tuple[Tensor, Tensor]:
    """The objective's own tokens under their weights; in bypass mode the engine's policy is the old one."""
    rollout = batch.given("rollout_log_probs_BT")
    trainer = batch.log_probs_BT.detach() if bypass else batch.given("old_log_probs_BT")
    weights, keep = corrected(trainer, rollout, batch.mask_BT, rules, weighting)
    if bypass:
        batch = replace(batch, old_log_probs_BT=rollout)
    loss, gradient = by_reference(CASES[name][1], replace(batch, mask_BT=keep))
    return loss * weights, gradient * weights


COMBINATIONS = [
    (name, weighting, bypass)
    for name in CASES
    for weighting in WEIGHTINGS
    for bypass in (False, True)
    if fits(name, weighting, bypass)
]


@pytest.mark.parametrize(("name", "weighting", "bypass"), COMBINATIONS)
@pytest.mark.parametrize("rules", [(), *((name,) for name in RULES), tuple(RULES)], ids="-".join)
def test_correction_of_every_objective(name: str, rules: tuple[str, ...], weighting: str, bypass: bool) -> None:
    correction = Correction([RULES[rule][0] for rule in rules], WEIGHTINGS[weighting][0])
    objective = CorrectedObjective(CASES[name][0], correction, bypass)
    for shifts in (MILD, SHIFTS["+-40"]):
        batch = shifted_batch(shifts, 4)
        got, wanted = value_and_gradient(objective, batch), expected(name, batch, rules, weighting, bypass)
        close(got, wanted)
        identical(objective, batch, spoilt(batch, ~batch.mask_BT, math.nan))


@pytest.mark.parametrize(("name", "weighting", "bypass"), COMBINATIONS)
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_token_without_an_engine_log_prob_is_taken_out(name: str, weighting: str, junk: float, bypass: bool) -> None:
    objective = CorrectedObjective(CASES[name][0], Correction((), WEIGHTINGS[weighting][0]), bypass)
    batch = shifted_batch(MILD, 4)
    missing = torch.zeros_like(batch.mask_BT)
    missing[1, 3] = True
    # the whole of another response
    missing[2] = batch.mask_BT[2]
    assert missing[2].any()
    broken = spoilt(batch, missing, junk, ["rollout_log_probs_BT"])
    got = value_and_gradient(objective, broken)
    without = value_and_gradient(objective, replace(batch, mask_BT=batch.mask_BT & ~missing))
    assert all(torch.equal(a, b) and a.isfinite().all() for a, b in zip(got, without, strict=True))
    total, count = objective(broken).metrics["correction/unusable_share"]
    assert (int(total), int(count)) == (int(missing.sum()), int(batch.mask_BT.sum()))
    nothing = value_and_gradient(objective, spoilt(batch, batch.mask_BT, junk, ["rollout_log_probs_BT"]))
    assert not any(tensor.any() for tensor in nothing)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("junk", [math.nan, math.inf])
def test_weights_formed_before_the_update_are_not_read_where_hidden(name: str, junk: float) -> None:
    batch = shifted_batch(MILD, 4)
    correction = Correction([RULES["token"][0]], TIS())
    corrected_before = correction(batch.given("old_log_probs_BT"), batch.given("rollout_log_probs_BT"), batch.mask_BT)
    dropped = ~corrected_before.keep_BT
    assert (batch.mask_BT & dropped).any()
    clean = replace(
        batch, correction_weights_BT=corrected_before.weights_BT, correction_keep_BT=corrected_before.keep_BT
    )
    spoilt_weights = corrected_before.weights_BT.masked_fill(dropped, junk)
    objective = CorrectedObjective(CASES[name][0], correction)
    identical(objective, clean, replace(clean, correction_weights_BT=spoilt_weights, correction_keep_BT=~dropped))


@pytest.mark.parametrize("objective", [GRPO(), GSPO(0.2, 0.2)])
def test_a_rejected_response_leaves_the_others_as_they_are(objective: GRPO | GSPO) -> None:
    whole = CorrectedObjective(objective, Correction([RejectSequences()], TIS()))
    batch = shifted_batch((0.0, 0.02, -0.02), 4)
    row = 1
    rollout = batch.given("rollout_log_probs_BT").clone()
    rollout[row, 0] -= 5
    other = replace(batch, rollout_log_probs_BT=rollout)
    before, after = value_and_gradient(whole, batch), value_and_gradient(whole, other)
    rest = torch.arange(len(batch.mask_BT)) != row
    for one, two in zip(before, after, strict=True):
        assert torch.equal(one[rest], two[rest]) and one[row].any() and not two[row].any()
    gone = torch.zeros_like(batch.mask_BT)
    gone[row] = True
    names = ("log_probs_BT", "advantages_BT", "old_log_probs_BT")
    junk = CorrectedObjective(objective, Correction([RejectSequences()], TIS()), bypass=False)
    assert torch.equal(value_and_gradient(junk, spoilt(other, gone, math.nan, names))[1], after[1])


def test_rejection_does_not_touch_the_kl_term() -> None:
    batch = shifted_batch((5.0, -5.0), 4)
    rejected = CorrectedObjective(GRPO(), Correction([RejectSequences()]))
    loss, _ = value_and_gradient(KLPenalty(rejected, 0.04), batch)
    plain, _ = value_and_gradient(KLPenalty(Reinforce(), 0.04), replace(batch, advantages_BT=batch.entropy_BT * 0))
    dropped = ~Correction([RejectSequences()])(
        batch.given("old_log_probs_BT"), batch.given("rollout_log_probs_BT"), batch.mask_BT
    ).keep_BT
    assert (batch.mask_BT & dropped).any()
    torch.testing.assert_close(loss[dropped], plain[dropped])


def test_metrics() -> None:
    batch = shifted_batch(MILD, 4)
    output = CorrectedObjective(GRPO(), Correction([RULES["token"][0]], TIS(1.3)))(batch)
    weights, keep = corrected(
        batch.given("old_log_probs_BT"), batch.given("rollout_log_probs_BT"), batch.mask_BT, ("token",), "tis"
    )
    metrics = {name: (float(total), int(count)) for name, (total, count) in output.metrics.items()}
    assert 0 < int(keep.sum()) < int(batch.mask_BT.sum())
    assert metrics["correction/kept_share"] == (int(keep.sum()), int(batch.mask_BT.sum()))
    assert metrics["correction/weight_mean"] == (pytest.approx(weights.sum().item()), int(keep.sum()))


def test_needs() -> None:
    opsm = OPSM()
    assert CorrectedObjective(GRPO(), Correction()).needs == {
        "advantages_BT",
        "old_log_probs_BT",
        "rollout_log_probs_BT",
    }
    assert CorrectedObjective(GRPO(), Correction(), True, opsm).needs == {"advantages_BT", "rollout_log_probs_BT"}
    batch = shifted_batch(MILD, 4)
    bypass = CorrectedObjective(GRPO(), Correction(), True, opsm)
    identical(bypass, batch, replace(batch, old_log_probs_BT=None))
