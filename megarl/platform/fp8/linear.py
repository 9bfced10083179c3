"""Linear layers of Megatron-core whose products are of rounded operands."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch import Tensor

from megarl.config.precision import FP8Config
from megarl.platform.fp8.cast import Quantised
from megarl.platform.fp8.delayed import DelayedScale
from megarl.platform.fp8.rounding import Rounding
from megarl.platform.layers.column_input import whole_input


def emulate_fp8(layers: torch.nn.Module, config: FP8Config) -> None:
    """Makes every tensor-parallel linear layer below `layers` round its operands; norms, routers and heads stay.

    Args:
        layers: the transformer blocks, of Megatron-core's own (local) linear layers.
        config: the recipe.

    Raises:
        ValueError: there is no such layer.
    """
    found = [module for module in layers.modules() if isinstance(module, ColumnParallelLinear | RowParallelLinear)]
    if not found:
        raise ValueError("there is no linear layer of Megatron-core's own to emulate FP8 in")
    for layer in found:
        layer.fp8_rounding = Rounding(config).to(layer.weight.device)
        # an attribute of the instance, which goes before the class's method
        layer._forward_impl = partial(_linear, layer.fp8_rounding)


def delayed_scales(models: Iterable[torch.nn.Module]) -> Iterator[tuple[str, DelayedScale]]:
    """The models' delayed scales by name, in the order of their layers: the same on every rank of a pipeline stage."""
    for index, model in enumerate(models):
        for name, module in model.named_modules():
            if isinstance(module, DelayedScale):
                yield f"{index}/{name}", module


def advance_scales(models: Iterable[torch.nn.Module]) -> None:
    """Ends an update of delayed scaling. Collective: the largest values are those of all tensor and data ranks."""
    scales = [scale for _, scale in delayed_scales(models)]
    if not scales:
        return
    pending_S = torch.stack([scale.pending for scale in scales])
    dist.all_reduce(
        pending_S,
        op=dist.ReduceOp.MAX,
        group=parallel_state.get_amax_reduction_group(with_context_parallel=True),
    )
    for scale, pending in zip(scales, pending_S, strict=True):
        scale.pending.copy_(pending)
        scale.advance()


def _linear(
    rounding: Rounding,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    allreduce_dgrad: bool = False,
    sequence_parallel: bool = False,
    tp_group: Any = None,
    **_: Any,
) -> Tensor:
    """Megatron-core's linear_with_grad_accumulation_and_async_allreduce: [..., k] to [..., m]."""
    # gathered before it is rounded: a scale over this rank's tokens alone would depend on the layout
    input = whole_input(input, tp_group, is_split=sequence_parallel, adds_gradients=allreduce_dgrad)
    output: Tensor = _RoundedProduct.apply(  # type: ignore[no-untyped-call]
        input, weight, rounding, torch.is_grad_enabled()
    )
    return output if bias is None else output + bias


class _RoundedProduct(torch.autograd.Function):
    """x w^T; backward dy w and dy^T x: each of operands in FP8, summed in fp32 and given in x's dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rounding: Rounding, is_training: bool) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        forward_x = rounding(rows, "input", 1, record=is_training)
        forward_w = rounding(weight, "weight", 1, record=is_training)
        if is_training:
            backward_x = rounding(rows, "input", 0) if rounding.is_directed else forward_x
            backward_w = rounding(weight, "weight", 0) if rounding.is_directed else forward_w
            ctx.save_for_backward(
                backward_x.values, backward_x.inverse_scale, backward_w.values, backward_w.inverse_scale
            )
            ctx.rounding, ctx.dtypes = rounding, (x.dtype, weight.dtype)
        output = forward_x.dequantise() @ forward_w.dequantise().t()
        return output.to(x.dtype).view(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        saved = ctx.saved_tensors
        x, weight = Quantised(*saved[:2]), Quantised(*saved[2:])
        rows, rounding = grad.reshape(-1, grad.shape[-1]), ctx.rounding
        grad_by_row = rounding(rows, "gradient", 1, record=True)
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            product = grad_by_row.dequantise() @ weight.dequantise()
            grad_x = product.to(ctx.dtypes[0]).view(*grad.shape[:-1], product.shape[1])
        if ctx.needs_input_grad[1]:
            grad_by_column = rounding(rows, "gradient", 0) if rounding.is_directed else grad_by_row
            grad_w = (grad_by_column.dequantise().t() @ x.dequantise()).to(ctx.dtypes[1])
        return grad_x, grad_w, None, None
