"""GAE against a naive loop in float64 over each response's own tokens."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from megarl.objectives import gae
from tests.unit.objectives.reference import ragged_mask, uniform

ROWS, WIDTH = 8, 9


def naive(rewards: Tensor, values: Tensor, mask: Tensor, final: Tensor, gamma: float, lam: float) -> Tensor:
    """A_t = sum_k (gamma lambda)^k delta_{t+k}, over the trained tokens alone, as if there were nothing in between."""
    advantages = torch.zeros(mask.shape, dtype=torch.float64)
    for row in range(len(mask)):
        columns = mask[row].nonzero()[:, 0].tolist()
        states = [values[row, t].item() for t in columns] + [final[row].item()]
        deltas = [rewards[row, t].item() + gamma * states[i + 1] - states[i] for i, t in enumerate(columns)]
        for i, t in enumerate(columns):
            advantages[row, t] = math.fsum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[i:]))
    return advantages


def inputs(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards, values, a mask with tool spans in the middle, and bootstraps of the truncated half."""
    shape = (ROWS, WIDTH)
    mask = ragged_mask(ROWS, WIDTH, seed)
    mask[1, 3:6] = False
    mask[2:] &= uniform(0, 1, (ROWS - 2, WIDTH), seed + 3) < 0.7
    final = torch.where(torch.arange(ROWS) % 2 == 0, 0.0, uniform(-2, 2, (ROWS,), seed + 2))
    return uniform(-1, 1, shape, seed), uniform(-1, 1, shape, seed + 1), mask, final


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.99, 0.9), (0.9, 0.0), (0.0, 0.5)])
@pytest.mark.parametrize("seed", [0, 10, 20])
def test_it_is_its_formula(gamma: float, lam: float, seed: int) -> None:
    rewards, values, mask, final = inputs(seed)
    out = gae(rewards, values, mask, final, gamma, lam)
    wanted = naive(rewards, values, mask, final, gamma, lam)
    assert out.advantages_BT.dtype == out.returns_BT.dtype == torch.float32
    torch.testing.assert_close(out.advantages_BT.double(), wanted, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(out.returns_BT.double(), (wanted + values) * mask, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e9])
def test_what_the_mask_hides_is_not_read(junk: float) -> None:
    rewards, values, mask, final = inputs(1)
    clean = gae(rewards, values, mask, final, 0.99, 0.9)
    other = gae(rewards.masked_fill(~mask, junk), values.masked_fill(~mask, junk), mask, final, 0.99, 0.9)
    assert torch.equal(clean.advantages_BT, other.advantages_BT) and torch.equal(clean.returns_BT, other.returns_BT)
    assert not clean.advantages_BT[0].any()


def test_a_tool_span_changes_nothing() -> None:
    rewards, values = uniform(-1, 1, (1, 4), 5), uniform(-1, 1, (1, 4), 6)
    plain = gae(rewards, values, torch.ones(1, 4, dtype=torch.bool), torch.zeros(1), 0.9, 0.8)
    columns = [0, 1, 5, 6]
    wide = torch.full((1, 8), math.nan, dtype=torch.float64)
    wide_rewards, wide_values, mask = wide.clone(), wide.clone(), torch.zeros(1, 8, dtype=torch.bool)
    wide_rewards[:, columns], wide_values[:, columns], mask[:, columns] = rewards, values, True
    spread = gae(wide_rewards, wide_values, mask, torch.zeros(1), 0.9, 0.8)
    assert torch.equal(spread.advantages_BT[:, columns], plain.advantages_BT)


def test_a_cut_response_is_worth_what_the_critic_expects() -> None:
    rewards, values, mask = torch.zeros(2, 3), torch.full((2, 3), 0.5), torch.ones(2, 3, dtype=torch.bool)
    out = gae(rewards, values, mask, torch.tensor([0.0, 0.5]), 1.0, 1.0)
    assert out.advantages_BT.tolist() == [[-0.5] * 3, [0.0] * 3]
    assert out.returns_BT.tolist() == [[0.0] * 3, [0.5] * 3]


def test_lambda_one_is_the_return_less_the_value() -> None:
    rewards, values, mask, final = inputs(3)
    out = gae(rewards, values, mask, torch.zeros_like(final), 1.0, 1.0)
    for row in range(ROWS):
        columns = mask[row].nonzero()[:, 0].tolist()
        for i, t in enumerate(columns):
            wanted = math.fsum(rewards[row, later].item() for later in columns[i:])
            assert out.returns_BT[row, t].item() == pytest.approx(wanted, rel=1e-5, abs=1e-6)


class OperationCounter(TorchDispatchMode):
    """Counts the operations that a device would be asked for."""

    operations = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return operation(*args, **(kwargs or {}))


def operations(width: int) -> int:
    values, mask = torch.ones(2, width), torch.ones(2, width, dtype=torch.bool)
    with OperationCounter() as counter:
        gae(values, values, mask, torch.zeros(2), 0.99, 0.9)
    return counter.operations


def test_a_long_response_costs_no_operation_a_token() -> None:
    """64 times the tokens are twice the doublings, 12 instead of 6, beside what does not grow."""
    assert operations(64) < operations(4096) < 2 * operations(64)
