"""Linear layers whose products are exact sums of rounded operands; gradients are torch's ordinary products."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megarl.platform.invariant.exact import exponents, grid_bits, on_grid, product, weight_grid


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
