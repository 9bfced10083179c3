"""Rejection: tokens or whole responses that leave a band are not trained on.

Delta = log trainer - log rollout, in nats; it must be 0 outside the mask. Every rule returns the tokens that stay.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Rule = Callable[[Tensor, Tensor], Tensor]
"""(Delta [B, T], mask [B, T]) to the bool mask of what stays [B, T]."""


@dataclass(frozen=True)
class RejectTokens:
    """Keeps tokens with low <= e^Delta <= high. With K2.5's band, 0.9 and 1.1, it is that objective's mask."""

    low: float = 0.9
    high: float = 1.1

    def __call__(self, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """See the class."""
        return mask_BT & _inside(log_ratio_BT, self.low, self.high)


@dataclass(frozen=True)
class RejectSequences:
    """Keeps responses with low <= e^(sum Delta) <= high."""

    low: float = 0.5
    high: float = 2.0

    def __call__(self, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """See the class."""
        return mask_BT & _inside(log_ratio_BT.sum(dim=1), self.low, self.high)[:, None]


@dataclass(frozen=True)
class RejectGeometric:
    """Keeps responses with low <= e^(mean Delta) <= high: a bound that does not grow with the length. As in verl."""

    low: float = 0.999
    high: float = 1.001

    def __call__(self, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """See the class."""
        return mask_BT & _inside(_mean(log_ratio_BT, mask_BT), self.low, self.high)[:, None]


@dataclass(frozen=True)
class RejectK3:
    """Keeps responses with mean(e^Delta - 1 - Delta), k3 of KL(rollout, trainer), of at most `high`; as in verl."""

    high: float = 0.01

    def __call__(self, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """See the class."""
        # beyond e^30 the mean is over any sensible bound, and further the fp32 exponential overflows
        k3_BT = torch.expm1(log_ratio_BT.clamp(max=30.0)) - log_ratio_BT
        return mask_BT & (_mean(k3_BT, mask_BT) <= self.high)[:, None]


@dataclass(frozen=True)
class Veto:
    """Drops a response that holds any token with e^Delta < low: the trainer could hardly have said it. 1e-4."""

    low: float = 1e-4

    def __call__(self, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """See the class."""
        return mask_BT & ~(mask_BT & (log_ratio_BT < math.log(self.low))).any(dim=1, keepdim=True)


def _inside(log_value: Tensor, low: float, high: float) -> Tensor:
    """Compared as logs, so that no ratio overflows; low 0 is no bound."""
    above = log_value >= (math.log(low) if low > 0 else -math.inf)
    return above & (log_value <= math.log(high))


def _mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return torch.where(mask_BT, values_BT, 0.0).sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)
