"""Off-policy sequence masking (DeepSeek-V3.2, 2512.02556, section 3.1, eq. 9).

A bad response that the policy has left is not pushed on: it is dropped where its advantage is negative and
mean log(old / policy) > delta. It depends on the current policy, so it is formed at each update. The paper's old is the
engine's distribution, as in bypass mode; decoupled mode takes the trainer's before the update. The paper gives no
delta; 1e-4 is slime's default.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class OPSM:
    """Attributes: delta: largest mean log(old / policy), in nats a token, of a response with a negative advantage."""

    delta: float = 1e-4

    def __call__(self, log_ratio_current_over_old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """The tokens that stay, bool [B, T]; a response's advantage is its tokens' mean."""
        tokens_B = mask_BT.sum(dim=1).clamp(min=1)
        gone_B = -torch.where(mask_BT, log_ratio_current_over_old_BT.detach(), 0.0).sum(dim=1) / tokens_B
        advantage_B = torch.where(mask_BT, advantages_BT, 0.0).sum(dim=1) / tokens_B
        return mask_BT & ~((advantage_B < 0) & (gone_B > self.delta))[:, None]
