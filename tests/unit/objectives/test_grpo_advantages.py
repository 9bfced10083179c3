"""Group-relative advantages against numpy."""

import numpy as np
import pytest
import torch

from megarl.objectives.advantages import ADVANTAGES
from megarl.objectives.advantages.grpo import grpo_advantages


def by_numpy(rewards: list[float], ids: list[str]) -> np.ndarray:
    """The formula, group by group."""
    values = np.array(rewards, dtype=np.float32).astype(np.float64)
    out = np.zeros(len(rewards))
    for name in set(ids):
        rows = np.array([i == name for i in ids])
        if rows.sum() > 1:
            out[rows] = (values[rows] - values[rows].mean()) / (values[rows].std(ddof=1) + 1e-6)
    return out


def test_interleaved_and_partial_groups() -> None:
    generator = np.random.default_rng(0)
    ids = [f"p{i}" for i in generator.integers(0, 5, 23)] + ["alone"]
    rewards = generator.normal(size=24).tolist()
    advantages = grpo_advantages(torch.tensor(rewards), ids)
    assert advantages.dtype == torch.float32
    np.testing.assert_allclose(advantages.numpy(), by_numpy(rewards, ids), rtol=1e-6, atol=1e-7)
    assert advantages[-1] == 0


def test_order_of_the_batch_does_not_matter() -> None:
    rewards, ids = torch.randn(12, generator=torch.Generator().manual_seed(1)), list("abcabcabcabc")
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    shuffled = grpo_advantages(rewards[order], [ids[row] for row in order.tolist()])
    torch.testing.assert_close(shuffled, grpo_advantages(rewards, ids)[order], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [2, 3, 6, 7, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero(size: int, dtype: torch.dtype) -> None:
    advantages = grpo_advantages(torch.full((size,), 0.1, dtype=dtype), ["p"] * size)
    assert torch.equal(advantages, torch.zeros(size))


def test_two_rewards_are_a_half_root_apart() -> None:
    # std of (0, 1) with n - 1 is 1/sqrt 2, so the advantages are +-sqrt(2)/2, less the epsilon
    advantages = grpo_advantages(torch.tensor([0.0, 1.0]), ["p", "p"])
    np.testing.assert_allclose(advantages.numpy(), [-(0.5**0.5), 0.5**0.5], rtol=1e-5)


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="3 rewards but 2 prompt ids"):
        grpo_advantages(torch.zeros(3), ["a", "b"])


def test_it_is_registered() -> None:
    assert ADVANTAGES["grpo"] is grpo_advantages
