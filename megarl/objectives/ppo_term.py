"""The clipped surrogate that PPO and its family share."""

import torch
from torch import Tensor


def clipped_surrogate(
    log_ratio_current_over_old: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), elementwise (Schulman et al. 2017, 1707.06347, eq. 7).

    Returns:
        The loss terms, and a bool tensor that is True where the clip took the gradient away.
    """
    ratio = log_ratio_current_over_old.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return torch.maximum(unclipped, clipped), clipped > unclipped
