"""REINFORCE++: returns and whitening against a naive loop in float64."""

import statistics
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megarl.objectives import ADVANTAGES, Rewarded
from tests.unit.objectives.reference import ragged_mask, uniform
from tests.unit.objectives.test_group_advantages import rewarded

ROWS, WIDTH = 9, 6


def batch_of(seed: int, gamma: float, holes: bool) -> Rewarded:
    mask = ragged_mask(ROWS, WIDTH, seed)
    if holes:
        mask &= uniform(0, 1, mask.shape, seed + 3) < 0.7
    ids = ["a", "b", "c", "a", "b", "c", "a", "alone", "b"]
    valid = torch.ones(ROWS, dtype=torch.bool)
    valid[4] = False
    penalties = uniform(-0.1, 0.2, mask.shape, seed + 1)
    return Rewarded(uniform(-1, 1, (ROWS,), seed + 2), ids, mask, valid, penalties, gamma=gamma)


def naive(batch: Rewarded, baseline: bool) -> Tensor:
    """Token by token, from the end of each response; statistics over all trained tokens."""
    valid = batch.valid_B.tolist()
    returns: dict[tuple[int, int], float] = {}
    for row in range(len(valid)):
        reward = batch.rewards_B[row].item()
        if baseline:
            group = [i for i in range(len(valid)) if valid[i] and batch.prompt_ids[i] == batch.prompt_ids[row]]
            reward -= sum(batch.rewards_B[i].item() for i in group) / max(len(group), 1)
        columns = batch.mask_BT[row].nonzero()[:, 0].tolist()
        running = 0.0
        for t in reversed(columns if valid[row] else []):
            penalty = 0.0 if batch.token_penalties_BT is None else batch.token_penalties_BT[row, t].item()
            running = (reward if t == columns[-1] else 0.0) - penalty + batch.gamma * running
            returns[row, t] = running
    mean, std = statistics.fmean(returns.values()), statistics.stdev(returns.values())
    advantages = torch.zeros(batch.mask_BT.shape, dtype=torch.float64)
    for at, value in returns.items():
        advantages[at] = (value - mean) / (std + 1e-8)
    return advantages


@pytest.mark.parametrize(("name", "baseline"), [("reinforce_pp", False), ("reinforce_pp_baseline", True)])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", [0, 10])
def test_it_is_its_formula(name: str, baseline: bool, gamma: float, holes: bool, seed: int) -> None:
    batch = batch_of(seed, gamma, holes)
    torch.testing.assert_close(ADVANTAGES[name](batch).double(), naive(batch, baseline), rtol=1e-6, atol=1e-7)


def test_whitened_over_trained_tokens_to_mean_zero_and_deviation_one() -> None:
    batch = batch_of(1, 1.0, True)
    values = ADVANTAGES["reinforce_pp"](batch)[batch.mask_BT & batch.valid_B[:, None]].double()
    assert values.mean().item() == pytest.approx(0, abs=1e-6) and values.std().item() == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])
@pytest.mark.parametrize("tokens", [0, 1])
def test_fewer_than_two_tokens_have_nothing_to_compare(name: str, tokens: int) -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    mask[0, :tokens] = True
    assert not ADVANTAGES[name](rewarded([1.0, 0.0], ["p", "p"], mask_BT=mask)).any()


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])
def test_two_tokens_are_a_half_root_apart(name: str) -> None:
    mask = torch.tensor([[False, True], [True, False]])
    advantages = ADVANTAGES[name](rewarded([1.0, 0.0], ["p", "p"], mask_BT=mask))
    torch.testing.assert_close(advantages, torch.tensor([[0.0, 0.5**0.5], [-(0.5**0.5), 0.0]]))


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])
@pytest.mark.parametrize("reward", [0.1, 1e9 + 0.1])
def test_equal_returns_are_exactly_zero(name: str, reward: float) -> None:
    assert not ADVANTAGES[name](rewarded([reward] * 7, list("aabbbcc"))).any()


def test_the_baseline_is_the_groups_mean() -> None:
    # an easy prompt and a hard one: without the baseline the hard one's best response would look bad
    batch = rewarded([10.0, 11.0, 0.0, 1.0], ["easy", "easy", "hard", "hard"])
    assert (ADVANTAGES["reinforce_pp"](batch)[3] < 0).all()
    with_baseline = ADVANTAGES["reinforce_pp_baseline"](batch)
    torch.testing.assert_close(with_baseline[1], with_baseline[3])
    assert (with_baseline[3] > 0).all()


def test_a_group_of_one_enters_as_zero_and_not_as_its_reward() -> None:
    rewards = [0.0, 1.0, 5.0]
    one, other = (rewarded([*rewards[:2], last], ["p", "p", "alone"]) for last in (5.0, -7.0))
    advantages = ADVANTAGES["reinforce_pp_baseline"](one)
    assert torch.equal(advantages, ADVANTAGES["reinforce_pp_baseline"](other))
    assert not torch.equal(
        ADVANTAGES["reinforce_pp"](one), ADVANTAGES["reinforce_pp"](replace(one, rewards_B=other.rewards_B))
    )
