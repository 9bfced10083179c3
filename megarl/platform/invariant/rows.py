"""RMSNorm, SiLU and the softmax over a vocabulary, each row's bits its own; gradients are torch's at these values."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from megarl.platform.invariant import elementary
from megarl.platform.invariant.exact import grid_bits, on_grid, total
from megarl.platform.invariant.gradient import exactly

VOCABULARY = 2**20
"""Tokens that a vocabulary has at most. Its sum's grid, of 33 bits, is this one's, whatever it has and is padded to."""
_AT_ONCE = 2**21
"""Logits, in fp64, that are worked through at once."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in the weight's dtype (arXiv:1910.07467)."""
    return exactly(partial(_rms_norm, eps=eps), partial(_plain_rms_norm, eps=eps), x, weight)


def silu(x: Tensor) -> Tensor:
    """x / (1 + e^-x), in x's dtype."""
    return exactly(elementary.silu, F.silu, x)


def exp_sums(shifted_NV: Tensor) -> Tensor:
    """sum_v e^x of each row, fp64 [N]; those of parts of a vocabulary add up exactly.

    Args:
        shifted_NV: the row's largest value, over the whole vocabulary, taken off.

    Raises:
        ValueError: there are more columns than a vocabulary may have.
    """
    columns = shifted_NV.shape[-1]
    if columns > VOCABULARY:
        raise ValueError(f"a vocabulary of {columns} tokens has no exact sum; {VOCABULARY} have")
    parts = shifted_NV.split(max(1, _AT_ONCE // columns))
    return torch.cat([total(elementary.exp(part.double()), VOCABULARY) for part in parts])


def log_softmax(logits_NV: Tensor) -> Tensor:
    """Log-probs, fp32 [N, V] in nats. Args: logits_NV: fp32."""
    shifted_NV = logits_NV - logits_NV.amax(dim=-1, keepdim=True)
    return (shifted_NV.double() - elementary.log(exp_sums(shifted_NV))[:, None]).float()


def _rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    size = x.shape[-1]
    squares = on_grid(x, grid_bits(size)).square_().sum(dim=-1, keepdim=True)
    return (x.double() / (squares / size + eps).sqrt_()).mul_(weight.double()).to(weight.dtype)


def _plain_rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    return F.rms_norm(x.float(), weight.shape, weight.float(), eps).to(weight.dtype)
