"""Fits of the sampling's settings to a side's log-probs, by one model pass."""

import math

import torch
from torch import Tensor

from megarl.drift.diagnosis.distance import Distance
from megarl.drift.diagnosis.distribution import Distributions
from megarl.drift.diagnosis.rollouts import Sampling

_GOLDEN = (math.sqrt(5) - 1) / 2
_STEPS = 40
"""Each takes the bracket to .618 of its width: 40 take log 16 to 1e-8."""
_COARSE = 17
TOP_P = (*(round(0.01 * number, 2) for number in range(5, 100)), 0.995, 0.999)


def fit_temperature(distributions: Distributions, target_N: Tensor, between: tuple[float, float] = (0.2, 5.0)) -> float:
    """The temperature that is nearest to a side's log-probs, of whole distributions.

    A grid first, as the distance may have several minima; then golden-section search.
    """

    def mean(log_temperature: float) -> float:
        return Distance.between(distributions.log_probs(Sampling(math.exp(log_temperature))), target_N).mean

    low, high = (math.log(bound) for bound in between)
    grid = [low + (high - low) * step / (_COARSE - 1) for step in range(_COARSE)]
    nearest = min(range(_COARSE), key=lambda step: mean(grid[step]))
    low, high = grid[max(0, nearest - 1)], grid[min(_COARSE - 1, nearest + 1)]
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = mean(left), mean(right)
    for _ in range(_STEPS):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = mean(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = mean(right)
    return math.exp((low + high) / 2)


def fit_top_p(distributions: Distributions, temperature: float, target_N: Tensor) -> float:
    """The top-p, of those in `TOP_P`, that is nearest to a side's log-probs at this temperature."""
    logits_NV = distributions.logits_NV.double() / temperature
    drawn_N = logits_NV.gather(1, distributions.targets_N[:, None])[:, 0]
    sorted_NV = logits_NV.sort(dim=1, descending=True).values
    partition_NV = sorted_NV.logcumsumexp(dim=1)
    reached_NV = (partition_NV - partition_NV[:, -1:]).exp()
    # the drawn token counts among those left
    place_N1 = (sorted_NV > drawn_N[:, None]).sum(dim=1, keepdim=True)

    def mean(top_p: float) -> float:
        last_N1 = (reached_NV < top_p).sum(dim=1, keepdim=True).clamp(max=logits_NV.shape[1] - 1)
        log_z_N = partition_NV.gather(1, torch.maximum(last_N1, place_N1))[:, 0]
        return Distance.between(drawn_N - log_z_N, target_N).mean

    return min(TOP_P, key=mean)


def fit_top_k(distributions: Distributions, temperature: float, target_N: Tensor) -> int:
    """The top-k that is nearest to a side's log-probs at this temperature."""
    logits_NV = distributions.logits_NV.double() / temperature
    drawn_N = logits_NV.gather(1, distributions.targets_N[:, None])[:, 0]
    sorted_NV = logits_NV.sort(dim=1, descending=True).values
    partition_NV = sorted_NV.logcumsumexp(dim=1)
    place_N1 = (sorted_NV > drawn_N[:, None]).sum(dim=1, keepdim=True)
    apart = [
        Distance.between(
            drawn_N - partition_NV.gather(1, place_N1.clamp(min=last))[:, 0],
            target_N,
        ).mean
        for last in range(min(logits_NV.shape[1], _LARGEST_K))
    ]
    return 1 + min(range(len(apart)), key=apart.__getitem__)


_LARGEST_K = 256
"""Larger ones leave so much of the probability that a temperature or rounding explains more."""
