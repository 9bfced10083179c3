"""Attention in which a query's bits depend on the keys that it sees alone."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from megarl.platform.invariant import elementary
from megarl.platform.invariant.exact import exponents, grid_bits, on_grid, on_unit_grid, total
from megarl.platform.invariant.gradient import exactly

_AT_ONCE = 2**21
"""Scores, in fp64, that are worked through at once."""


def attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float | None, context: int) -> Tensor:
    """softmax(q k^T * scale) v with grouped queries, in v's dtype, [b, n, s, h].

    Args:
        q: [b, n, s, h].
        k: [b, g, t, h], with n a multiple of g.
        v: [b, g, t, h].
        visible: bool, broadcastable to [b, 1, s, t]: the keys that a query sees, at least one. Others count for
            nothing, wherever they are.
        scale: factor of the scores; 1/sqrt(h) where None.
        context: keys that a query sees at most; the grids, and so the result, depend on it.
    """
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return exactly(
        partial(_attention, visible=visible, scale=factor, context=context),
        partial(_plain_attention, visible=visible, scale=factor),
        q,
        k,
        v,
    )


def _attention(q: Tensor, k: Tensor, v: Tensor, *, visible: Tensor, scale: float, context: int) -> Tensor:
    batch, heads, rows, size = q.shape
    groups, keys = k.shape[1], k.shape[2]
    score_bits, value_bits = grid_bits(size), grid_bits(context)
    # [b, g, queries of the group's heads, ...]: one product for all heads that share keys
    q_grid = on_grid(q, score_bits).view(batch, groups, heads // groups, rows, size)
    k_grid = on_grid(k, score_bits).transpose(-1, -2)
    # a grid of its own for each key's value, whose power of two goes to the weights: none depends on other keys
    exponent = exponents(v.double())
    unit = ((exponent + 1) << 52).view(torch.float64)
    v_grid = on_unit_grid(v.double() / unit, value_bits)
    unit_of_key = unit.transpose(-1, -2)[:, :, None]
    output = torch.empty(batch, groups, heads // groups, rows, size, dtype=torch.float64, device=q.device)
    sees = visible.expand(batch, 1, rows, keys)[:, :, None]
    step = max(1, _AT_ONCE // max(1, batch * heads * keys))
    for begin in range(0, rows, step):
        part = slice(begin, begin + step)
        queries = q_grid[:, :, :, part]
        some = queries.shape[3]
        scores = (queries.flatten(2, 3) @ k_grid).view(batch, groups, heads // groups, some, keys).mul_(scale)
        hidden = ~sees[:, :, :, part]
        scores.masked_fill_(hidden, -torch.inf)
        weights = elementary.exp(scores.sub_(scores.amax(dim=-1, keepdim=True))).masked_fill_(hidden, 0.0)
        sums = on_grid(weights * unit_of_key, value_bits).flatten(2, 3) @ v_grid
        sums = sums.view(batch, groups, heads // groups, some, size)
        output[:, :, :, part] = sums / total(weights, context)[..., None]
    return output.view(batch, heads, rows, size).to(v.dtype)


def _plain_attention(q: Tensor, k: Tensor, v: Tensor, *, visible: Tensor, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale, enable_gqa=True)
