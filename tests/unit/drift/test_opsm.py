"""Off-policy sequence masking: bad responses that the policy has left are dropped, and nothing else."""

import math
from dataclasses import replace

import pytest
import torch

from megarl.drift.corrections import OPSM, CorrectedObjective, Correction
from megarl.objectives import GRPO, TokenBatch
from tests.unit.objectives.batches import CASES, by_reference, close, shifted_batch, spoilt, value_and_gradient

MASK = torch.tensor([[True, True, False]])


@pytest.mark.parametrize(
    ("advantage", "log_ratios", "stays"),
    [
        (-1.0, [-0.1, -0.1], False),
        (-1.0, [0.1, 0.1], True),
        (-1.0, [-0.3, 0.2], False),
        (-1.0, [-0.2, 0.3], True),
        (1.0, [-0.1, -0.1], True),
        (0.0, [-0.1, -0.1], True),
        (-1.0, [-40.0, 39.0], False),
        (-1.0, [-39.0, 40.0], True),
    ],
)
def test_which_responses_stay(advantage: float, log_ratios: list[float], stays: bool) -> None:
    moved = torch.tensor([[*log_ratios, math.nan]])
    keep = OPSM(0.04)(moved, torch.tensor([[advantage, advantage, math.nan]]), MASK)
    assert keep.tolist() == [[stays, stays, False]]


def test_an_empty_response_is_neither() -> None:
    nothing = torch.full((1, 3), math.nan)
    assert not OPSM()(nothing, nothing, torch.zeros(1, 3, dtype=torch.bool)).any()


def drop(batch: TokenBatch, delta: float, bypass: bool) -> torch.Tensor:
    """Rows that the definition drops."""
    rows = []
    old = batch.given("rollout_log_probs_BT" if bypass else "old_log_probs_BT")
    for row, mask in enumerate(batch.mask_BT):
        gone = (old[row] - batch.log_probs_BT.detach()[row])[mask]
        rows.append(bool(mask.any()) and bool(batch.given("advantages_BT")[row, 0] < 0) and bool(gone.mean() > delta))
    return torch.tensor(rows)


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("name", ["ppo", "gspo wide", "cispo", "k2_5", "reinforce"])
def test_with_every_kind_of_objective(name: str, bypass: bool) -> None:
    batch = shifted_batch((0.5, -0.6, 0.1, 40.0, -40.0), 6)
    advantages = torch.tensor([-1.0, -2.0, 1.5, -0.5, -1.0, -0.7], dtype=torch.float64)[:, None]
    batch = replace(batch, advantages_BT=advantages.expand(batch.mask_BT.shape))
    dropped = drop(batch, 0.02, bypass)
    trained = batch.mask_BT.any(dim=1) & (advantages[:, 0] < 0)
    assert dropped.any() and (trained & ~dropped).any()
    objective = CorrectedObjective(CASES[name][0], Correction(), bypass, OPSM(0.02))
    wanted = replace(batch, mask_BT=batch.mask_BT & ~dropped[:, None])
    if bypass:
        wanted = replace(wanted, old_log_probs_BT=batch.rollout_log_probs_BT)
    close(value_and_gradient(objective, batch), by_reference(CASES[name][1], wanted))
    total, count = objective(batch).metrics["correction/opsm_dropped_share"]
    assert (int(total), int(count)) == (int(batch.mask_BT[dropped].sum()), int(batch.mask_BT.sum()))


def test_it_follows_the_policy_as_it_is_now() -> None:
    batch = shifted_batch((0.0,), 6)
    batch = replace(batch, advantages_BT=torch.full_like(batch.entropy_BT, -1.0))
    objective = CorrectedObjective(GRPO(), Correction(), opsm=OPSM())
    assert value_and_gradient(objective, batch)[0][batch.mask_BT].all()
    left = replace(batch, log_probs_BT=(batch.log_probs_BT.detach() - 0.01).requires_grad_())
    assert not value_and_gradient(objective, left)[0].any()
    hidden = value_and_gradient(objective, spoilt(batch, ~batch.mask_BT, math.nan))
    assert torch.equal(hidden[0], value_and_gradient(objective, batch)[0])
