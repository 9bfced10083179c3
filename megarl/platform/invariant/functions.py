"""A transformer's operations, each row's bits its own; gradients are those of torch's operations at these values."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from megarl.platform.invariant import elementary
from megarl.platform.invariant.exact import (
    exponents,
    grid_bits,
    on_grid,
    on_unit_grid,
    product,
    total,
    weight_grid,
)

VOCABULARY = 2**20
"""Tokens that a vocabulary has at most. Its sum's grid, of 33 bits, is this one's, whatever it has and is padded to."""
_AT_ONCE = 2**21
"""Scores or logits, in fp64, that are worked through at once."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x w^T + b, [..., k] to [..., m] in x's dtype: an exact product of rounded operands, rounded once."""
    output: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return output


def linear_on_grid(x: Tensor, weight_grid_MK: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` for a weight that is on its grid already; without a gradient."""
    sums = product(x.reshape(-1, x.shape[-1]), weight_grid_MK)
    if bias is not None:
        sums += bias.double()
    return sums.to(x.dtype).view(*x.shape[:-1], len(weight_grid_MK))


def linear_over_ranks(x: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    """`linear` where each rank holds some columns of x and of the weight; whole on every rank. Collective.

    Its gradient on a rank is that of the rank's columns; the output's is taken to be the same on all.

    Args:
        x: [..., k / ranks].
        weight: [m, k / ranks].
        group: the ranks.
    """
    if dist.get_world_size(group) == 1:
        return linear(x, weight)
    output: Tensor = _LinearOverRanks.apply(x, weight, group)  # type: ignore[no-untyped-call]
    return output


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in the weight's dtype (arXiv:1910.07467)."""
    return _exactly(partial(_rms_norm, eps=eps), partial(_plain_rms_norm, eps=eps), x, weight)


def silu(x: Tensor) -> Tensor:
    """x / (1 + e^-x), in x's dtype."""
    return _exactly(elementary.silu, F.silu, x)


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
    return _exactly(
        partial(_attention, visible=visible, scale=factor, context=context),
        partial(_plain_attention, visible=visible, scale=factor),
        q,
        k,
        v,
    )


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


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return linear_on_grid(x, weight_grid(weight), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            grad @ weight if needs_x else None,
            rows.t() @ x.reshape(-1, x.shape[-1]) if needs_weight else None,
            rows.sum(dim=0) if ctx.has_bias and needs_bias else None,
        )


class _LinearOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(x, weight)
        bits = grid_bits(x.shape[-1] * dist.get_world_size(group))
        grids = []
        for own in (x.reshape(-1, x.shape[-1]), weight):
            exponent = exponents(own.double())
            dist.all_reduce(exponent, op=dist.ReduceOp.MAX, group=group)
            grids.append(on_grid(own, bits, exponent))
        sums = grids[0] @ grids[1].t()
        dist.all_reduce(sums, group=group)
        return sums.to(x.dtype).view(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.reshape(-1, grad.shape[-1]).t() @ x.reshape(-1, x.shape[-1]), None


class _Exactly(torch.autograd.Function):
    """Values by one function, the gradient by another that is the same but for rounding."""

    @staticmethod
    def forward(ctx: Any, exact: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.plain = plain
        ctx.save_for_backward(*inputs)
        return exact(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        leaves = [x.detach().requires_grad_(needs) for x, needs in zip(ctx.saved_tensors, needed, strict=True)]
        with torch.enable_grad():
            output = ctx.plain(*leaves)
        found = iter(torch.autograd.grad(output, [leaf for leaf in leaves if leaf.requires_grad], grad))
        return None, None, *(next(found) if needs else None for needs in needed)


def _exactly(exact: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    output: Tensor = _Exactly.apply(exact, plain, *inputs)  # type: ignore[no-untyped-call]
    return output


def _rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    size = x.shape[-1]
    squares = on_grid(x, grid_bits(size)).square_().sum(dim=-1, keepdim=True)
    return (x.double() / (squares / size + eps).sqrt_()).mul_(weight.double()).to(weight.dtype)


def _plain_rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    return F.rms_norm(x.float(), weight.shape, weight.float(), eps).to(weight.dtype)


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
