"""Generalised advantage estimation (Schulman et al. 2015, 1506.02438, eq. 16) over the masked tokens of a response.

    delta_t = R_t + gamma V_{t+1} - V_t
    A_t = delta_t + gamma lambda A_{t+1}

V_t is the value of the state in which token t is chosen. Positions outside the mask (tool output) carry V_{t+1} and
A_{t+1} on unchanged. After the last token the value is 0 where the response ended by itself, and the critic's value of
the state that it was cut in where it was truncated: being cut is not being worthless.
"""

from dataclasses import dataclass

from torch import Tensor

from megarl.objectives.advantages.discount import discounted_sums, next_masked
from megarl.objectives.masked import masked


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
    rewards_BT = masked(token_rewards_BT.double(), mask_BT)
    values_BT = masked(values_BT.double(), mask_BT)
    next_values_BT = next_masked(values_BT, mask_BT, final_values_B.double())
    deltas_BT = masked(rewards_BT + gamma * next_values_BT - values_BT, mask_BT)
    advantages_BT = discounted_sums(deltas_BT, mask_BT, gamma * lam)
    return GAE(advantages_BT.float(), masked(advantages_BT + values_BT, mask_BT).float())
