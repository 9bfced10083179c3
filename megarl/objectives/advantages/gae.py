"""Generalised advantage estimation (Schulman et al. 2015, 1506.02438, eq. 16) over the masked tokens of a response.

    delta_t = R_t + gamma V_{t+1} - V_t
    A_t = delta_t + gamma lambda A_{t+1}

V_t is the value of the state in which token t is chosen. Positions outside the mask (tool output) carry V_{t+1} and
A_{t+1} on unchanged. After the last token the value is 0 where the response ended by itself, and the critic's value of
the state that it was cut in where it was truncated: being cut is not being worthless.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GAE:
    """Advantages and the returns that the critic is trained towards, both fp32 [B, T], 0 outside the mask."""

    advantages_BT: Tensor
    returns_BT: Tensor


def gae(
    token_rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, final_values_B: Tensor, gamma: float, lam: float
) -> GAE:
    """See the module's formula.

    Args:
        token_rewards_BT: reward of each token; read where the mask is True.
        values_BT: the critic's value of the state before each token; read where the mask is True.
        mask_BT: bool, the trained tokens.
        final_values_B: value after the last token: 0 for a response that ended by itself.
        gamma: discount a token.
        lam: GAE's lambda.
    """
    rewards_BT = torch.where(mask_BT, token_rewards_BT.double(), 0.0)
    values_BT = torch.where(mask_BT, values_BT.double(), 0.0)
    next_value_B = final_values_B.double()
    next_advantage_B = torch.zeros_like(next_value_B)
    advantages_BT = torch.zeros_like(rewards_BT)
    for t in reversed(range(mask_BT.shape[1])):
        masked_B = mask_BT[:, t]
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        advantage_B = delta_B + gamma * lam * next_advantage_B
        next_advantage_B = torch.where(masked_B, advantage_B, next_advantage_B)
        next_value_B = torch.where(masked_B, values_BT[:, t], next_value_B)
        advantages_BT[:, t] = torch.where(masked_B, advantage_B, 0.0)
    return GAE(advantages_BT.float(), torch.where(mask_BT, advantages_BT + values_BT, 0.0).float())
