"""Sums and products without rounding, of operands that are rounded to a grid first.

The idea is Ozaki et al.'s, 'Error-free transformations of matrix multiplication by using fast routines of matrix
multiplication' (Numerical Algorithms 59, 2012), with one slice an operand: a product of two numbers with b bits has 2b,
and fp64's 53 hold the sum of 2^(53 - 2b) such products, in whatever order, with or without fused multiply-adds.
"""

import torch
from torch import Tensor

_MANTISSA, _EXPONENT_AT = 53, 52
"""Bits of an fp64's mantissa with its hidden one; where its exponent begins."""
_HALF = 1 << 51
"""The mantissa of 1.5: what is added to it stays between two powers of two, below and above."""


def grid_bits(terms: int) -> int:
    """Bits that each of two operands may have, so that so many of their products add up exactly."""
    return (_MANTISSA - (terms - 1).bit_length()) // 2


def exponents(x: Tensor) -> Tensor:
    """The biased fp64 exponent of each row's largest absolute value, int64 [..., 1]. Args: x: fp64 [..., n]."""
    return x.abs().amax(dim=-1, keepdim=True).view(torch.int64) >> _EXPONENT_AT


def on_grid(x: Tensor, bits: int, exponent: Tensor | None = None) -> Tensor:
    """Each row to the nearest multiples of 2^(e - bits), with e the least integer that has all of it below 2^e.

    Args:
        x: [..., n], any floating dtype. A row that is not finite gives a row that is not.
        bits: at most 51.
        exponent: int64 [..., 1], what `exponents` gave of rows that these are a part of; of x itself where None.

    Returns:
        fp64 [..., n]. Zeros stay zeros, and more of them change nothing.
    """
    wide = x.double()
    # the sum's last place is the grid, so that adding rounds to it and subtracting leaves the multiple
    own = exponents(wide) if exponent is None else exponent
    shift = (((own + (_MANTISSA - bits)) << _EXPONENT_AT) | _HALF).view(torch.float64)
    return (wide + shift).sub_(shift)


def on_unit_grid(x: Tensor, bits: int) -> Tensor:
    """fp64 values from -1 to 1 to the nearest multiples of 2^-bits; bits at most 51."""
    shift = 1.5 * 2.0 ** (_EXPONENT_AT - bits)
    return (x + shift).sub_(shift)


def total(x: Tensor, terms: int) -> Tensor:
    """The sum over the last dimension, [...], of fp64 values from 0 to 1, each first rounded to a grid.

    Args:
        x: [..., n].
        terms: at least as many as are not 0; the grid, and so the result, depends on it.
    """
    # 51 bits are the most that a grid has
    return on_unit_grid(x, min(_MANTISSA - (terms - 1).bit_length(), 51)).sum(dim=-1)


def product(x_NK: Tensor, weight_grid_MK: Tensor) -> Tensor:
    """x w^T in fp64 [..., N, M], with the rows of x on their grids.

    Args:
        x_NK: [..., N, K], any floating dtype.
        weight_grid_MK: [..., M, K], what `weight_grid` gave.
    """
    return on_grid(x_NK, grid_bits(x_NK.shape[-1])) @ weight_grid_MK.transpose(-1, -2)


def weight_grid(weight_MK: Tensor) -> Tensor:
    """Rows of a weight as `product` takes them, fp64 [..., M, K]."""
    return on_grid(weight_MK, grid_bits(weight_MK.shape[-1]))
