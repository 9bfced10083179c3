"""Scales, and the cast to FP8 and back.

What a scale is where there is nothing to scale by follows Transformer Engine's compute_scale_from_amax
(transformer_engine/common/recipe/recipe_common.cuh).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
GRADIENTS = {"e4m3": E4M3, "hybrid": E5M2}
"""What gradients are cast to, by the recipe's format (Micikevicius et al. 2022, arXiv:2209.05433)."""


@dataclass(frozen=True)
class Quantised:
    """A tensor in FP8.

    Attributes:
        values: float8, [rows, columns].
        inverse_scale: fp32, what they are multiplied by to be read; broadcasts over them.
    """

    values: Tensor
    inverse_scale: Tensor

    def dequantise(self) -> Tensor:
        """fp32 [rows, columns]."""
        return self.values.float() * self.inverse_scale


def largest(dtype: torch.dtype) -> float:
    """The largest finite number of a float8 dtype: 448 for E4M3, 57344 for E5M2."""
    return torch.finfo(dtype).max


def saturating_cast(scaled: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds to the nearest number of a float8 dtype, ties to even; beyond the largest, to it.

    So do CUDA's `cvt.satfinite` instructions, infinities included. NaN stays NaN.
    """
    bound = largest(dtype)
    return scaled.clamp(-bound, bound).to(dtype)


def quantise(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Quantised:
    """x times an fp32 scale that broadcasts over it, in FP8."""
    return Quantised(saturating_cast(x.float() * scale, dtype), scale.reciprocal())


def amax(x: Tensor, dims: tuple[int, ...] | None = None) -> Tensor:
    """Largest absolute value, fp32, over all dimensions where none is named; it passes NaN over, as CUDA does.

    Of no values, such as an expert's that no token is sent to, it is 0.
    """
    if dims is None and x.numel() == 0:
        return torch.zeros((), dtype=torch.float32, device=x.device)
    absolute = x.float().abs().nan_to_num(nan=0.0, posinf=torch.inf)
    return absolute.amax() if dims is None else absolute.amax(dims, keepdim=True)


def scale_of(
    largest_value: Tensor, dtype: torch.dtype, *, power_of_two: bool = False, at_most: float | None = None
) -> Tensor:
    """The scale that takes the largest value to the largest FP8 number.

    Args:
        largest_value: fp32, never NaN.
        dtype: the float8 dtype.
        power_of_two: whether the scale is rounded down to one.
        at_most: what stands in for a scale beyond fp32; fp32's largest number by default.

    Returns:
        fp32, finite and above 0; 1 where the largest value is 0 or infinite.
    """
    scale = largest(dtype) / largest_value
    scale = scale.masked_fill(scale.isinf(), torch.finfo(torch.float32).max if at_most is None else at_most)
    scale = scale.masked_fill((largest_value == 0) | largest_value.isinf(), 1.0)
    if power_of_two:
        mantissa, exponent = torch.frexp(scale)
        return torch.ldexp(torch.ones_like(mantissa), exponent - 1)
    return scale
