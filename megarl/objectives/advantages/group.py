"""The shape that group-relative estimators share."""

from collections.abc import Callable

import torch
from torch import Tensor

from megarl.objectives.advantages.inputs import Rewarded


def is_uniform(values: Tensor) -> bool:
    """Whether the values tell nothing apart: fewer than two, or all equal. A NaN equals none, and so is not hidden.

    max == min, not std == 0: equal rewards such as .1 leave rounding in the mean and a std of 1e-17.
    """
    return len(values) < 2 or bool(values.max() == values.min())


def by_group(batch: Rewarded, estimate: Callable[[Tensor], Tensor]) -> Tensor:
    """Applies `estimate` to each group's penalised rewards.

    A group of one, or of equal rewards, gets 0: nothing in it says which response was better.

    Args:
        batch: the step's responses.
        estimate: fp64 rewards of a group [G] to its advantages [G].

    Returns:
        fp32 advantages [B, T].
    """
    rewards_B = batch.penalised_rewards()
    advantages_B = torch.zeros_like(rewards_B)
    for rows in batch.groups():
        group = rewards_B[rows]
        if not is_uniform(group):
            advantages_B[rows] = estimate(group)
    return batch.on_tokens(advantages_B)
