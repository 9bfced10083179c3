"""Arithmetic on masked tokens that never reads what the mask hides."""

import torch
from torch import Tensor

from megarl.objectives.batch import Sum

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 nats before exp: e^20 is 5e8, and beyond it fp32 products overflow to inf * 0."""


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where the mask is True, 0 elsewhere; selected, not multiplied, so a hidden NaN stays hidden."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_sum(values: Tensor, mask: Tensor) -> Sum:
    """Sum of the masked values and their count, detached."""
    return masked(values.detach(), mask).sum(), mask.sum()


def masked_difference(log_probs_numerator: Tensor, log_probs_denominator: Tensor, mask: Tensor) -> Tensor:
    """log(numerator / denominator) in nats, 0 outside the mask; for terms that form no exponential of it.

    Both operands are selected by the mask before they are subtracted: a NaN that the mask hides would otherwise
    reach the gradient of exp through 0 * NaN.
    """
    return masked(log_probs_numerator, mask) - masked(log_probs_denominator, mask)


def masked_log_ratio(log_probs_numerator: Tensor, log_probs_denominator: Tensor, mask: Tensor) -> Tensor:
    """`masked_difference` clamped to +-MAX_LOG_RATIO nats, ready for exp; beyond the bound it has no gradient."""
    return masked_difference(log_probs_numerator, log_probs_denominator, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def masked_mean_per_response(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over each response's masked tokens [B]; 0 for a response without one."""
    return masked(values_BT, mask_BT).sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)
