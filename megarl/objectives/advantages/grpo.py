"""GRPO's group-relative advantage (Shao et al. 2024, 2402.03300, section 4.1.2): (R - mean) / (std + 1e-6).

The paper keeps the KL out of the reward (section 4.1.1). Where a recipe puts it there, R is the penalised reward and
std still that of the rewards alone: a group that the reward does not tell apart has nothing to standardise, and
dividing by the spread of its KL would blow that up to unit variance, whatever its coefficient.
"""

import torch
from torch import Tensor

from megarl.objectives.advantages.group import is_uniform
from megarl.objectives.advantages.inputs import Rewarded

STD_EPSILON = 1e-6


def grpo(batch: Rewarded) -> Tensor:
    """Rewards standardised within their group, by the unbiased standard deviation of the rewards without penalties.

    The paper gives neither the 1e-6 nor which deviation it takes. A group of one, or of equal rewards without
    penalties, gets 0.
    """
    rewards_B, penalised_B = batch.rewards_B.double(), batch.penalised_rewards()
    advantages_B = torch.zeros_like(rewards_B)
    for rows in batch.groups():
        rewards, penalised = rewards_B[rows], penalised_B[rows]
        if not is_uniform(rewards):
            advantages_B[rows] = (penalised - penalised.mean()) / (rewards.std() + STD_EPSILON)
    return batch.on_tokens(advantages_B)
