"""A scale for each block of a matrix. Blocks at the right and lower edges may be smaller than the others."""

import torch
import torch.nn.functional as F
from torch import Tensor

from megarl.platform.fp8.cast import Quantised, amax, largest, quantise, scale_of


def quantise_blocks(x: Tensor, block: tuple[int, int], dtype: torch.dtype, *, power_of_two: bool) -> Quantised:
    """Transformer Engine's Float8BlockScaling: each block's largest value becomes the largest FP8 number.

    Args:
        x: [rows, columns], floating point.
        block: rows and columns of a block.
        dtype: the float8 dtype.
        power_of_two: whether scales are rounded down to powers of two, as Transformer Engine does by default.
    """
    block_amax = _block_amax(x, block)
    scale = scale_of(block_amax, dtype, power_of_two=power_of_two, at_most=torch.finfo(x.dtype).max)
    return quantise(x, _spread(scale, block, x.shape), dtype)


def quantise_mx(x: Tensor, block: tuple[int, int], dtype: torch.dtype) -> Quantised:
    """MXFP8: E8M0 scales, powers of two from 2^-127 to 2^127, rounded so that no element exceeds the largest number.

    The exponent is that of amax / largest, rounded up (Mishra et al. 2025, arXiv:2506.08027, section 4), where the OCP
    specification's own rule rounds down and saturates.

    Args:
        x: [rows, columns], floating point.
        block: rows and columns of a block: 1 x 32 or 32 x 1.
        dtype: the float8 dtype.
    """
    block_amax = _block_amax(x, block)
    mantissa, exponent = torch.frexp(block_amax * (1 / largest(dtype)))
    # frexp's mantissa is in [1/2, 1): of a power of two it is 1/2, which there is nothing to round up from
    power = torch.where(mantissa > 0.5, exponent, exponent - 1).clamp(-127, 127)
    inverse = torch.ldexp(torch.ones_like(mantissa), power)
    # frexp of an infinity has no exponent to speak of
    inverse = inverse.masked_fill(block_amax.isinf(), 2.0**127).masked_fill(block_amax == 0, 1.0)
    return quantise(x, _spread(inverse.reciprocal(), block, x.shape), dtype)


def _block_amax(x: Tensor, block: tuple[int, int]) -> Tensor:
    """fp32 [ceil(rows / block rows), ceil(columns / block columns)]."""
    rows, columns = x.shape
    padded = F.pad(x, (0, -columns % block[1], 0, -rows % block[0]))
    tiles = padded.view(padded.shape[0] // block[0], block[0], padded.shape[1] // block[1], block[1])
    return amax(tiles, (1, 3))[:, 0, :, 0]


def _spread(per_block: Tensor, block: tuple[int, int], shape: torch.Size) -> Tensor:
    """A number for each block as one for each element."""
    rows = per_block.repeat_interleave(block[0], 0)[: shape[0]]
    return rows.repeat_interleave(block[1], 1)[:, : shape[1]]
