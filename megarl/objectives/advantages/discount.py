"""Sums and successors over a response's masked tokens, as if there were nothing between them.

A loop over positions would start some kernels for each, which on a GPU takes far longer than their work. Here masked
tokens are moved together, worked on as whole rows, and moved back.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from megarl.objectives.masked import masked


def discounted_sums(values_BT: Tensor, mask_BT: Tensor, discount: float) -> Tensor:
    """Sum over a token and the later masked ones of discount^(distance in masked tokens) * value.

    Args:
        values_BT: read where the mask is True.
        mask_BT: bool.
        discount: a masked token; what is not masked neither counts nor discounts.

    Returns:
        fp64 [B, T], 0 outside the mask.
    """
    order_BT = _together(mask_BT)
    sums_BT = masked(values_BT.double(), mask_BT).gather(1, order_BT)
    reach = 1
    # each pass doubles how far ahead a position has summed
    while reach < sums_BT.shape[1]:
        sums_BT = sums_BT + discount**reach * F.pad(sums_BT[:, reach:], (0, reach))
        reach *= 2
    return masked(_back(sums_BT, order_BT), mask_BT)


def next_masked(values_BT: Tensor, mask_BT: Tensor, final_B: Tensor) -> Tensor:
    """The value at the next masked token; at the last one the row's `final_B`. [B, T], 0 outside the mask."""
    order_BT = _together(mask_BT)
    later_BT = torch.cat([values_BT.gather(1, order_BT)[:, 1:], final_B[:, None]], dim=1)
    is_last_BT = torch.arange(mask_BT.shape[1], device=mask_BT.device) == mask_BT.sum(dim=1, keepdim=True) - 1
    return masked(_back(torch.where(is_last_BT, final_B[:, None], later_BT), order_BT), mask_BT)


def _together(mask_BT: Tensor) -> Tensor:
    """Positions of each row's masked tokens in their order, and after them those of the others, int64 [B, T]."""
    return (~mask_BT).int().argsort(dim=1, stable=True)


def _back(together_BT: Tensor, order_BT: Tensor) -> Tensor:
    return torch.empty_like(together_BT).scatter_(1, order_BT, together_BT)
