"""Linear layers whose operands are rounded to 8 bits and read back, as an engine's dynamic quantisation does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from megarl.drift.diagnosis.computation import Operands
from megarl.platform.fp8.blocks import quantise_blocks
from megarl.platform.fp8.cast import E4M3, amax, quantise, scale_of

_BLOCK = 128
Operand = Callable[[Tensor], Tensor]


def rounded(x: Tensor, kind: Operands, steps_N: Tensor | None = None) -> Tensor:
    """A matrix in 8 bits and back, in its own dtype.

    A product sums over the columns of both operands, so a scale a row is one for an output channel of the weight, and
    one for a token of the input. FP8 is E4M3; integers are symmetric about 0.

    Args:
        x: [rows, columns].
        kind: of scales.
        steps_N: int64, of an input's rows, which of them an engine reads at once; None for a weight.
    """
    if kind == "int8_row":
        return rounded_to_integers(x, 8)
    if kind == "fp8_step" and steps_N is not None:
        largest_N = amax(x, (1,))[:, 0]
        largest_S = torch.zeros(int(steps_N.max()) + 1).scatter_reduce(0, steps_N, largest_N, "amax")
        held = quantise(x, scale_of(largest_S[steps_N][:, None], E4M3), E4M3)
    elif kind in ("fp8_tensor", "fp8_step"):
        held = quantise(x, scale_of(amax(x), E4M3), E4M3)
    elif kind == "fp8_row":
        held = quantise(x, scale_of(amax(x, (1,)), E4M3), E4M3)
    else:
        held = quantise_blocks(x, (_BLOCK if steps_N is None else 1, _BLOCK), E4M3, power_of_two=False)
    return held.dequantise().to(x.dtype)


def rounded_to_integers(x_RC: Tensor, bits: int) -> Tensor:
    """A matrix rounded to integers, symmetric about 0, of so many bits and back; a scale a row, 1 for rows of zeros."""
    scales_R1 = x_RC.abs().amax(dim=-1, keepdim=True).float() / (2 ** (bits - 1) - 1)
    scales_R1 = scales_R1.where(scales_R1 > 0, 1.0)
    held_RC: Tensor = (x_RC / scales_R1).round() * scales_R1
    return held_RC.to(x_RC.dtype)


@contextmanager
def rounding(layers: torch.nn.Module, kind: Operands, steps_N: Tensor) -> Iterator[None]:
    """Has every linear layer below `layers` round its weight and its input, while it lasts.

    Args:
        layers: a module.
        kind: of scales.
        steps_N: see `rounded`; of the N places that the module reads.
    """

    def input_as(x: Tensor) -> Tensor:
        return rounded(x.reshape(-1, x.shape[-1]), kind, steps_N).view(x.shape)

    with operands_as(layers, lambda weight: rounded(weight, kind), input_as):
        yield


@contextmanager
def operands_as(layers: torch.nn.Module, weight_as: Operand | None, input_as: Operand | None) -> Iterator[None]:
    """Has every linear layer below `layers` multiply other operands, while it lasts.

    Args:
        layers: a module, whose weights are put back.
        weight_as: what becomes of a weight [rows, columns]; None for nothing.
        input_as: what becomes of an input [..., columns]; likewise.
    """
    linears = [module for module in layers.modules() if isinstance(module, torch.nn.Linear)]
    kept = [linear.weight.data for linear in linears]
    handles = []
    try:
        for linear in linears:
            if weight_as is not None:
                linear.weight.data = weight_as(linear.weight.data)
            if input_as is not None:
                handles.append(linear.register_forward_pre_hook(lambda _, inputs: (input_as(inputs[0]), *inputs[1:])))
        yield
    finally:
        for linear, weight in zip(linears, kept, strict=True):
            linear.weight.data = weight
        for handle in handles:
            handle.remove()
