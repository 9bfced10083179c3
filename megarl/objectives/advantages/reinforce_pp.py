"""REINFORCE++ (Hu 2025, 2501.03262, version 2, eq. 8 to 10): token returns, whitened over the whole batch.

    return_t = sum_{s >= t} gamma^(s-t) (R_s - beta k1_s),   R_s the response's reward at its last token, else 0
    advantage = (return - mean) / (std + 1e-8), over all trained tokens of the step

The baseline form subtracts the group's mean reward first (version 2, appendix A), so that a hard prompt's best response
counts as good. Positions outside the mask (tool output) are passed over: they neither cost nor discount.
"""

import torch
from torch import Tensor

from megarl.objectives.advantages.discount import discounted_sums
from megarl.objectives.advantages.group import is_uniform
from megarl.objectives.advantages.inputs import Rewarded

STD_EPSILON = 1e-8


def reinforce_pp(batch: Rewarded) -> Tensor:
    """Whitened returns."""
    return _whitened_returns(batch, batch.rewards_B.double())


def reinforce_pp_baseline(batch: Rewarded) -> Tensor:
    """Whitened returns of rewards less their group's mean; a group of one, or of equal rewards, enters as 0."""
    rewards_B = torch.zeros_like(batch.rewards_B, dtype=torch.float64)
    for rows in batch.groups():
        group = batch.rewards_B[rows].double()
        if not is_uniform(group):
            rewards_B[rows] = group - group.mean()
    return _whitened_returns(batch, rewards_B)


def at_last_token(rewards_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Each reward at its response's last masked token, 0 elsewhere, fp64 [B, T]; a response without tokens has none."""
    positions_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_B = torch.where(mask_BT, positions_T, -1).amax(dim=1)
    return torch.where(positions_T == last_B[:, None], rewards_B.double()[:, None], 0.0)


def whiten(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """(x - mean) / (std + 1e-8) over the masked values, fp64; all 0 where there are fewer than two or all are equal."""
    values_N = values_BT[mask_BT]
    if is_uniform(values_N):
        return torch.zeros_like(values_BT)
    return torch.where(mask_BT, (values_BT - values_N.mean()) / (values_N.std() + STD_EPSILON), 0.0)


def _whitened_returns(batch: Rewarded, rewards_B: Tensor) -> Tensor:
    trained_BT = batch.mask_BT & batch.valid_B[:, None]
    token_rewards_BT = at_last_token(rewards_B, batch.mask_BT) - batch.masked_penalties()
    returns_BT = discounted_sums(token_rewards_BT, batch.mask_BT, batch.gamma)
    return whiten(returns_BT, trained_BT).float()
