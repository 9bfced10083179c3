"""Advantages that compare the responses of one prompt, against numpy."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from megarl.objectives import ADVANTAGES, Rewarded
from tests.unit.objectives.reference import ragged_mask, uniform

Array = np.ndarray[Any, np.dtype[np.float64]]
# Of a group's rewards less their penalties, and of the rewards alone.
FORMULAS: dict[str, Callable[[Array, Array], Array]] = {
    "grpo": lambda r, alone: (r - r.mean()) / (alone.std(ddof=1) + 1e-6),
    "dr_grpo": lambda r, _: r - r.mean(),
    "rloo": lambda r, _: np.array([r[i] - np.delete(r, i).mean() for i in range(len(r))]),
    "max_rl": lambda r, _: (r - r.mean()) / r.mean(),
}


def rewarded(rewards: Sequence[float], ids: Sequence[str], **other: Any) -> Rewarded:
    """Every response with three tokens, and every one valid."""
    rewards_B = torch.tensor(rewards, dtype=torch.float64)
    mask = torch.ones(len(rewards_B), 3, dtype=torch.bool)
    return Rewarded(**({"rewards_B": rewards_B, "prompt_ids": ids, "mask_BT": mask, "valid_B": mask[:, 0]} | other))


def by_numpy(name: str, batch: Rewarded) -> Tensor:
    """The formula, group by group, on each response's trained tokens."""
    alone = rewards = batch.rewards_B.double().numpy()
    if batch.token_penalties_BT is not None:
        hidden = np.where(batch.mask_BT.numpy(), batch.token_penalties_BT.double().numpy(), 0.0)
        rewards = rewards - hidden.sum(axis=1)
    valid, ids = batch.valid_B.numpy(), np.array(batch.prompt_ids)
    advantages = np.zeros(len(rewards))
    for prompt_id in set(batch.prompt_ids):
        rows = (ids == prompt_id) & valid
        compared = alone if name == "grpo" else rewards
        if rows.sum() > 1 and len(set(compared[rows])) > 1:
            advantages[rows] = FORMULAS[name](rewards[rows], alone[rows])
    return torch.from_numpy(advantages[:, None] * (batch.mask_BT.numpy() & valid[:, None]))


def random_batch(seed: int, **other: Any) -> Rewarded:
    """Interleaved groups of unequal sizes, one prompt alone, one with equal rewards; ragged masks."""
    generator = np.random.default_rng(seed)
    ids = [f"p{i}" for i in generator.integers(0, 5, 22)] + ["alone", "same", "same", "same"]
    rewards = torch.cat([uniform(0, 2, (23,), seed), torch.full((3,), 0.1, dtype=torch.float64)])
    mask = ragged_mask(26, 5, seed)
    mask[-3:] = True
    return rewarded(rewards.tolist(), ids, mask_BT=mask, **other)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("penalised", [False, True])
def test_advantage_is_its_formula(name: str, seed: int, penalised: bool) -> None:
    batch = random_batch(seed)
    if penalised:
        batch = replace(batch, rewards_B=batch.rewards_B + 1, token_penalties_BT=uniform(0, 0.1, (26, 5), seed))
    advantages = ADVANTAGES[name](batch)
    assert advantages.dtype == torch.float32 and advantages.shape == (26, 5)
    torch.testing.assert_close(advantages.double(), by_numpy(name, batch), rtol=1e-6, atol=1e-7)
    assert (advantages[22] == 0).all()
    assert (penalised and name != "grpo") or (advantages[-3:] == 0).all()


@pytest.mark.parametrize("name", ADVANTAGES)
def test_order_of_the_batch_does_not_matter(name: str) -> None:
    batch = random_batch(3, baselines_B=uniform(0, 1, (26,), 4))
    order = torch.randperm(26, generator=torch.Generator().manual_seed(2))
    assert batch.baselines_B is not None
    shuffled = replace(
        batch,
        rewards_B=batch.rewards_B[order],
        prompt_ids=[batch.prompt_ids[row] for row in order.tolist()],
        mask_BT=batch.mask_BT[order],
        baselines_B=batch.baselines_B[order],
    )
    torch.testing.assert_close(ADVANTAGES[name](shuffled), ADVANTAGES[name](batch)[order], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e9])
def test_a_rejected_sample_is_as_if_it_had_not_been_drawn(name: str, junk: float) -> None:
    batch = random_batch(5, token_penalties_BT=uniform(0, 0.1, (26, 5), 6), baselines_B=uniform(0, 1, (26,), 7))
    batch = replace(batch, rewards_B=batch.rewards_B + 1)
    assert batch.token_penalties_BT is not None and batch.baselines_B is not None
    gone = torch.zeros(26, dtype=torch.bool)
    gone[[1, 4, 23]] = True
    spoilt = replace(
        batch,
        valid_B=~gone,
        rewards_B=batch.rewards_B.masked_fill(gone, junk),
        baselines_B=batch.baselines_B.masked_fill(gone, junk),
        token_penalties_BT=batch.token_penalties_BT.masked_fill(gone[:, None] | ~batch.mask_BT, junk),
    )
    left = (~gone).nonzero()[:, 0]
    without = Rewarded(
        batch.rewards_B[left],
        [batch.prompt_ids[row] for row in left.tolist()],
        batch.mask_BT[left],
        torch.ones(23, dtype=torch.bool),
        batch.token_penalties_BT[left],
        batch.baselines_B[left],
    )
    advantages = ADVANTAGES[name](spoilt)
    assert torch.equal(advantages[left], ADVANTAGES[name](without))
    assert not advantages[gone].any()
    assert advantages.any()


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero(name: str, size: int, dtype: torch.dtype) -> None:
    rewards = torch.full((size,), 0.1, dtype=dtype)
    assert not ADVANTAGES[name](rewarded(rewards.tolist(), ["p"] * size, rewards_B=rewards)).any()


@pytest.mark.parametrize("name", ADVANTAGES)
def test_nothing_valid_and_nothing_trained_are_zero(name: str) -> None:
    batch = random_batch(1, baselines_B=torch.zeros(26))
    assert not ADVANTAGES[name](replace(batch, valid_B=torch.zeros(26, dtype=torch.bool))).any()
    assert not ADVANTAGES[name](replace(batch, mask_BT=torch.zeros_like(batch.mask_BT))).any()


def with_kl(rewards: Sequence[float], kl: Sequence[float], coefficient: float) -> Rewarded:
    """One group, whose responses each cost coefficient * kl on their first token."""
    penalties = torch.zeros(len(kl), 3, dtype=torch.float64)
    penalties[:, 0] = coefficient * torch.tensor(kl, dtype=torch.float64)
    return rewarded(rewards, ["p"] * len(kl), token_penalties_BT=penalties)


@pytest.mark.parametrize("coefficient", [1e-9, 1e-3, 1.0])
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_grpo_learns_nothing_from_the_kl_of_equal_rewards(coefficient: float, reward: float) -> None:
    assert not ADVANTAGES["grpo"](with_kl([reward] * 4, [0.3, -0.1, 0.2, 0.0], coefficient)).any()


def test_grpo_does_not_scale_a_kl_by_its_own_spread() -> None:
    """The KL's part of an advantage grows with its coefficient; divided by its own spread it would not."""
    rewards, kl = [1.0, 0.0, 0.0, 1.0], [0.3, -0.1, 0.2, 0.0]
    plain = ADVANTAGES["grpo"](with_kl(rewards, kl, 0.0)).double()
    one, ten = (ADVANTAGES["grpo"](with_kl(rewards, kl, beta)).double() - plain for beta in (0.1, 1.0))
    # fp32 advantages of size 1 have a rounding of 6e-8 each, and a difference of two is multiplied by 10
    torch.testing.assert_close(ten, 10 * one, rtol=0.0, atol=2e-6)
    assert one.abs().max() > 0.01


@pytest.mark.parametrize("name", ["dr_grpo", "rloo"])
def test_estimators_without_a_deviation_keep_the_kl_at_its_scale(name: str) -> None:
    """R - beta KL is their reward, as RLOO's paper has it, equal rewards or not."""
    kl = [0.3, -0.1, 0.2, 0.0]
    advantages = ADVANTAGES[name](with_kl([1.0] * 4, kl, 0.01))[:, 0].double()
    wanted = -0.01 * (torch.tensor(kl, dtype=torch.float64) - 0.1) * (4 / 3 if name == "rloo" else 1)
    torch.testing.assert_close(advantages, wanted, rtol=1e-5, atol=1e-9)


def test_two_rewards_by_hand() -> None:
    # std of (0, 1) with n - 1 is 1 / sqrt 2
    batch = rewarded([0.0, 1.0], ["p", "p"])
    wanted = {"grpo": 0.5**0.5, "dr_grpo": 0.5, "rloo": 1.0, "max_rl": 1.0}
    for name, value in wanted.items():
        got = ADVANTAGES[name](batch)[:, 0].tolist()
        assert got == pytest.approx([-value, value], rel=1e-5), name


def test_max_rl_is_refused_negative_rewards_of_valid_responses_alone() -> None:
    batch = rewarded([1.0, -0.5], ["p", "p"])
    with pytest.raises(ValueError, match=r"max_rl needs rewards of 0 or more, and one is -0\.5"):
        ADVANTAGES["max_rl"](batch)
    assert not ADVANTAGES["max_rl"](replace(batch, valid_B=torch.tensor([True, False]))).any()
    assert not ADVANTAGES["max_rl"](rewarded([0.0, 0.0], ["p", "p"])).any()


def test_remax_is_the_reward_less_the_greedy_one() -> None:
    batch = rewarded([1.0, 0.25, 0.5], ["a", "b", "a"], baselines_B=torch.tensor([0.5, 1.0, 0.5]))
    assert ADVANTAGES["remax"](batch)[:, 1].tolist() == [0.5, -0.75, 0.0]
    with pytest.raises(ValueError, match="baselines_B"):
        ADVANTAGES["remax"](replace(batch, baselines_B=None))


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="3 rewards, 2 prompt ids, 3 masks and 3 validities"):
        rewarded([0.0] * 3, ["a", "b"])


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "max_rl", "reinforce_pp", "reinforce_pp_baseline"])
def test_a_reward_that_is_no_number_is_not_hidden(name: str) -> None:
    """An advantage of 0 would pass for a group that teaches nothing."""
    assert ADVANTAGES[name](rewarded([1.0, math.nan, 0.0], ["p"] * 3)).isnan().any()
