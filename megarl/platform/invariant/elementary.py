"""exp, log, cosine, sine and SiLU of fp64 tensors, of additions, multiplications and divisions alone."""

import math

import torch
from torch import Tensor

_EXP_TERMS, _LOG_TERMS, _CIRCLE_TERMS = 9, 11, 10
"""Of the series: exp's leaves 7e-12 of the result behind, the others 1e-17."""
_QUARTER = (float.fromhex("0x1.921fb544p0"), float.fromhex("0x1.0b4611a626331p-34"))
"""Half of pi in two parts, the first of 31 bits."""
_LEAST = -700.0
"""Argument of exp below which the result is that of this one, 1e-304: fp64 would soon run out of exponents."""


def exp(x: Tensor) -> Tensor:
    """e^x, fp64, to 1e-11 relative. Args: x: fp64 up to 700; NaN stays NaN."""
    x = x.clamp(min=_LEAST)
    halvings = (x * (1 / math.log(2))).round_()
    rest = x.sub_(halvings * math.log(2))
    power = torch.full_like(rest, 1 / math.factorial(_EXP_TERMS))
    for term in reversed(range(_EXP_TERMS)):
        power.mul_(rest).add_(1 / math.factorial(term))
    return power.mul_(((halvings.long() + 1023) << 52).view(torch.float64))


def log(x: Tensor) -> Tensor:
    """Natural log, fp64. Args: x: fp64, above 0 and finite."""
    mantissa, exponent = torch.frexp(x)
    is_low = mantissa < math.sqrt(0.5)
    mantissa = torch.where(is_low, mantissa * 2, mantissa)
    # 2 artanh(t), with |t| below 0.172
    t = (mantissa - 1) / (mantissa + 1)
    square = t * t
    series = torch.full_like(t, 1 / (2 * _LOG_TERMS + 1))
    for term in reversed(range(_LOG_TERMS)):
        series = series * square + 1 / (2 * term + 1)
    return 2 * t * series + (exponent - is_low.int()).double() * math.log(2)


def cos_sin(x: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine, fp64, to 1e-15. Args: x: fp64, radians, up to 2^20 either way."""
    quarters = (x * (2 / math.pi)).round()
    # the first part times as many quarters is exact, and so is the first difference
    rest = (x - quarters * _QUARTER[0]) - quarters * _QUARTER[1]
    square = rest * rest
    cos, sin = (torch.zeros_like(rest) for _ in range(2))
    for term in reversed(range(_CIRCLE_TERMS)):
        sign = (-1) ** term
        cos = cos * square + sign / math.factorial(2 * term)
        sin = sin * square + sign / math.factorial(2 * term + 1)
    sin = sin * rest
    turned = quarters.long() % 4
    is_odd, is_back = turned % 2 == 1, turned >= 2
    cos, sin = torch.where(is_odd, -sin, cos), torch.where(is_odd, cos, sin)
    return torch.where(is_back, -cos, cos), torch.where(is_back, -sin, sin)


def silu(x: Tensor) -> Tensor:
    """x / (1 + e^-x), in x's dtype. Args: x: any floating dtype."""
    wide = x.double()
    below = exp(-wide.abs())
    return (torch.where(wide < 0, wide * below, wide) / (1 + below)).to(x.dtype)
