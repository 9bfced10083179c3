"""Importance weights for tokens that another policy sampled: truncated or masked, always detached.

Delta = log trainer - log rollout, in nats. Both multiply the policy's term after its clip.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from megarl.objectives.masked import MAX_LOG_RATIO


@dataclass(frozen=True)
class TIS:
    """Truncated importance sampling: min(e^Delta, cap) (Ionides 2008; for RL with engines, Yao et al. 2025). cap 2.

    The cap is verl's default.
    """

    cap: float = 2.0

    def __call__(self, log_ratio_train_over_rollout_BT: Tensor) -> Tensor:
        """Weights [B, T]."""
        return _ratio(log_ratio_train_over_rollout_BT).clamp(max=self.cap)


@dataclass(frozen=True)
class IcePop:
    """Masked importance sampling: e^Delta inside [low, high], 0 outside (Ling Team 2025, 2510.18855). 0.5 and 5."""

    low: float = 0.5
    high: float = 5.0

    def __call__(self, log_ratio_train_over_rollout_BT: Tensor) -> Tensor:
        """Weights [B, T]."""
        ratio_BT = _ratio(log_ratio_train_over_rollout_BT)
        inside_BT = (ratio_BT >= self.low) & (ratio_BT <= self.high)
        return torch.where(inside_BT, ratio_BT, 0.0)


def _ratio(log_ratio_BT: Tensor) -> Tensor:
    # bounded above only: e^-40 is small and right, and overflows nothing
    return log_ratio_BT.detach().clamp(max=MAX_LOG_RATIO).exp()
