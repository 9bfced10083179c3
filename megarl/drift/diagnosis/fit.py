"""Fits of the sampling's settings to a side's log-probs, by one model pass."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megarl.drift.diagnosis.distance import Distance
from megarl.drift.diagnosis.distribution import Distributions
from megarl.drift.diagnosis.rollouts import Sampling

_GOLDEN = (math.sqrt(5) - 1) / 2
_STEPS = 40
"""Each takes the bracket to .618 of its width: 40 take what two of the grid leave to 1e-8."""
_COARSE = 25
TEMPERATURES = (0.05, 20.0)
"""Below the least a side is greedy but for rounding, above the largest uniform."""
LARGEST_K = 256
"""Larger ones leave so much of the probability that a temperature or rounding explains more."""
TOP_P = (*(round(0.01 * number, 2) for number in range(5, 100)), 0.995, 0.999)


def fit_temperature(distributions: Distributions, target_N: Tensor) -> float:
    """The temperature that is nearest to a side's log-probs, of whole distributions.

    A grid first, as the distance may have several minima; then golden-section search.
    """

    def mean(log_temperature: float) -> float:
        return Distance.between(distributions.log_probs(Sampling(math.exp(log_temperature))), target_N).mean

    low, high = (math.log(bound) for bound in TEMPERATURES)
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
    """The top-p, of those in `TOP_P`, that is nearest to a side's log-probs at this temperature.

    Where several leave the same tokens, the roundest is taken, as people set those: the fewest digits, then the middle.
    """
    ranked = _Ranked.of(distributions, temperature)
    reached_NV = (ranked.partition_NV - ranked.partition_NV[:, -1:]).exp()
    top_p_NP = torch.tensor(TOP_P, dtype=torch.float64).expand(len(reached_NV), -1).contiguous()
    last_NP = torch.searchsorted(reached_NV, top_p_NP).clamp(max=reached_NV.shape[1] - 1)
    tied = [TOP_P[number] for number in ranked.nearest(last_NP, target_N)]
    digits = min(len(str(top_p)) for top_p in tied)
    round_ones = [top_p for top_p in tied if len(str(top_p)) == digits]
    return round_ones[(len(round_ones) - 1) // 2]


def fit_top_k(distributions: Distributions, temperature: float, target_N: Tensor) -> int:
    """The top-k, from 1 to `LARGEST_K`, that is nearest to a side's log-probs at this temperature."""
    ranked = _Ranked.of(distributions, temperature)
    most = min(ranked.partition_NV.shape[1], LARGEST_K)
    last_NK = torch.arange(most).expand(len(ranked.drawn_N), most)
    return 1 + ranked.nearest(last_NK, target_N)[0]


def fit_slope(one_N: Tensor, other_N: Tensor) -> float:
    """The number that, times one side, is nearest to the other in the mean: a weighted median of their quotients."""
    known_N = (one_N != 0) & one_N.isfinite() & other_N.isfinite()
    if not known_N.any():
        return math.nan
    quotient_N, order_N = (other_N[known_N] / one_N[known_N]).sort()
    weight_N = one_N[known_N].abs()[order_N].cumsum(0)
    return float(quotient_N[(weight_N < weight_N[-1] / 2).sum()])


@dataclass(frozen=True)
class _Ranked:
    """Logits in falling order.

    Attributes:
        partition_NV: log-sum of the exponentials of a row's first logits.
        drawn_N: the drawn token's logit.
        place_N1: its place in that order; it counts among those left wherever the truncation falls.
    """

    partition_NV: Tensor
    drawn_N: Tensor
    place_N1: Tensor

    @staticmethod
    def of(distributions: Distributions, temperature: float) -> "_Ranked":
        """At a temperature."""
        logits_NV = distributions.logits_NV.double() / temperature
        drawn_N1 = logits_NV.gather(1, distributions.targets_N[:, None])
        partition_NV = logits_NV.sort(dim=1, descending=True).values.logcumsumexp(dim=1)
        return _Ranked(partition_NV, drawn_N1[:, 0], (logits_NV > drawn_N1).sum(dim=1, keepdim=True))

    def nearest(self, last_NC: Tensor, target_N: Tensor) -> list[int]:
        """Which of C truncations, each given by its last place, have the log-probs nearest to a side's in the mean."""
        log_z_NC = self.partition_NV.gather(1, torch.maximum(last_NC, self.place_N1))
        apart_NC = (self.drawn_N[:, None] - log_z_NC - target_N[:, None]).abs()
        mean_C = apart_NC.nanmean(dim=0)
        return [int(number) for number in (mean_C == mean_C.min()).nonzero()] or [0]
