"""MaxRL's advantage (Tajwar et al. 2026, 2602.02710): (R - mean) / mean, the gradient of log success probability.

For rewards in {0, 1} the group's mean estimates the success probability p, and grad log p = grad p / p. Rewards must
not be negative; a group whose mean is 0 has no success to learn from, and gets 0.
"""

from torch import Tensor

from megarl.objectives.advantages.group import by_group
from megarl.objectives.advantages.inputs import Rewarded


def max_rl(batch: Rewarded) -> Tensor:
    """Rewards less their group's mean, as a share of it.

    Raises:
        ValueError: a valid response's penalised reward is negative.
    """
    rewards_B = batch.penalised_rewards()[batch.valid_B]
    if (rewards_B < 0).any():
        raise ValueError(f"max_rl needs rewards of 0 or more, and one is {rewards_B.min().item():.6g}")
    return by_group(batch, lambda group: (group - group.mean()) / group.mean())
