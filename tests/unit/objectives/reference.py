"""GRPO, SFT and the KL estimators token by token in Python floats, with the derivatives worked out by hand."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

BOUND = 20.0


@dataclass(frozen=True)
class Token:
    """Loss of one token, and its derivative by the current policy's log-prob."""

    loss: float
    gradient: float


def clamped(x: float) -> tuple[float, float]:
    """x kept within the bound, and the derivative of that."""
    return max(-BOUND, min(BOUND, x)), 1.0 if -BOUND <= x <= BOUND else 0.0


def k3(log_ratio: float) -> float:
    """e^-x + x - 1."""
    return math.exp(-log_ratio) + log_ratio - 1


def grpo_token(
    log_prob: float, old: float, reference: float | None, advantage: float, low: float, high: float, beta: float
) -> Token:
    """max(-A r, -A clip(r)) + beta (e^-x + x - 1)."""
    log_ratio, slope = clamped(log_prob - old)
    ratio = math.exp(log_ratio)
    unclipped, clipped = -advantage * ratio, -advantage * min(max(ratio, 1 - low), 1 + high)
    loss = max(unclipped, clipped)
    gradient = unclipped * slope if unclipped >= clipped else 0.0
    if reference is not None and beta > 0:
        x, slope = clamped(log_prob - reference)
        loss += beta * k3(x)
        gradient += beta * (1 - math.exp(-x)) * slope
    return Token(loss, gradient)


def ragged_mask(rows: int, width: int, seed: int) -> Tensor:
    """Bool [rows, width]: each row a stretch of its own, the first row empty, the second full."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(rows, width, dtype=torch.bool)
    for row in range(rows):
        begin, end = sorted(torch.randint(0, width + 1, (2,), generator=generator).tolist())
        mask[row, begin:end] = True
    mask[0], mask[1] = False, True
    return mask


def uniform(low: float, high: float, shape: tuple[int, ...], seed: int) -> Tensor:
    """float64 numbers in [low, high)."""
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * (high - low) + low
