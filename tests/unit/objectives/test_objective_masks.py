"""What the mask hides is never read, and what is missing has a defined result."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from megarl.objectives import DPPOTV, SFT, DecoupledPPO, EntropyBonus, KLPenalty, Objective, TokenBatch
from megarl.objectives.kl import ESTIMATORS
from tests.unit.objectives.batches import CASES, SHIFTS, identical, shifted_batch, spoilt, value_and_gradient

WHOLE: dict[str, Objective] = {
    name: EntropyBonus(KLPenalty(objective, 0.04), 0.1) for name, (objective, _) in CASES.items()
}
WHOLE |= {
    f"{name}, {sampler}, cap {cap}": KLPenalty(
        CASES["grpo"][0], 0.1, name, importance_weighted=sampler != "unweighted", cap=cap, bypass=sampler == "engine"
    )
    for name, sampler, cap in product(ESTIMATORS, ("unweighted", "old", "engine"), (None, 0.5))
}
WHOLE["sft"] = SFT()


@pytest.mark.parametrize("objective", WHOLE.values(), ids=list(WHOLE))
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 7.0])
def test_masked_tokens_are_never_read(objective: Objective, junk: float) -> None:
    batch = shifted_batch(SHIFTS["mixed"], 5)
    other = spoilt(batch, ~batch.mask_BT, junk)
    identical(objective, batch, other)
    loss, gradient = value_and_gradient(objective, other)
    assert (loss[~batch.mask_BT] == 0).all() and (gradient[~batch.mask_BT] == 0).all()
    assert (gradient[batch.mask_BT] != 0).any()


@pytest.mark.parametrize("objective", WHOLE.values(), ids=list(WHOLE))
def test_batch_without_a_trained_token_is_zero(objective: Objective) -> None:
    batch = shifted_batch((0.0,), 5)
    nothing = replace(batch, mask_BT=torch.zeros_like(batch.mask_BT))
    for log_probs in (batch.log_probs_BT.detach(), torch.full_like(batch.log_probs_BT, math.nan)):
        loss, gradient = value_and_gradient(
            objective, replace(nothing, log_probs_BT=log_probs.clone().requires_grad_())
        )
        assert not loss.any() and not gradient.any()
    assert all(float(total) == 0 and float(count) == 0 for total, count in objective(nothing).metrics.values())


@pytest.mark.parametrize("objective", WHOLE.values(), ids=list(WHOLE))
def test_one_valid_token_is_as_if_alone(objective: Objective) -> None:
    batch = shifted_batch((0.05,), 6)
    mask = torch.zeros_like(batch.mask_BT)
    mask[2, 3] = True
    loss, gradient = value_and_gradient(objective, replace(batch, mask_BT=mask))
    names = ("entropy_BT", "advantages_BT", "old_log_probs_BT", "rollout_log_probs_BT", "reference_log_probs_BT")
    names = (*names, "selected_BT")
    alone = TokenBatch(
        batch.log_probs_BT.detach()[2:3, 3:4].clone().requires_grad_(),
        mask[2:3, 3:4],
        **{name: batch.given(name)[2:3, 3:4] for name in names},
    )
    for whole, part in zip((loss, gradient), value_and_gradient(objective, alone), strict=True):
        assert whole.isfinite().all() and torch.equal(whole[2, 3], part[0, 0])
        assert torch.count_nonzero(whole) == torch.count_nonzero(part) == 1


@pytest.mark.parametrize("objective", [DPPOTV(), DecoupledPPO()])
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_missing_engine_log_prob_takes_its_token_out(objective: Objective, junk: float) -> None:
    batch = shifted_batch((0.0, 0.1, -0.1), 7)
    missing = torch.zeros_like(batch.mask_BT)
    missing[1, 2] = True
    mine = value_and_gradient(objective, spoilt(batch, missing, junk, ["rollout_log_probs_BT"]))
    without = value_and_gradient(objective, replace(batch, mask_BT=batch.mask_BT & ~missing))
    assert all(torch.equal(a, b) for a, b in zip(mine, without, strict=True))
    total, count = objective(spoilt(batch, missing, junk, ["rollout_log_probs_BT"])).metrics["policy/unusable_share"]
    assert int(total) == 1 and int(count) == int(batch.mask_BT.sum())
