"""What a drift is made of: parts that are switched one at a time, and how much of the whole each is.

A part is a log-ratio between two scorings of the same tokens that differ in one switch. Shares are of k3, the estimate
of KL(engine, trainer), which is half the mean square of small log-ratios: those of independent causes add up, up to the
remainder that is told. Mean absolute values do not, and are given beside it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megarl.drift.log_ratios import k3_terms


@dataclass(frozen=True)
class Part:
    """One log-ratio's size.

    Attributes:
        name: of what is switched.
        switched: which two scorings it lies between, in words.
        tokens: that both scored.
        abs_mean: mean |log-ratio|, nats a token.
        abs_mean_error: its standard error over responses, whose tokens are not independent.
        k3: mean of e^D - 1 - D, nats a token.
        k3_error: its standard error, likewise.
    """

    name: str
    switched: str
    tokens: int
    abs_mean: float
    abs_mean_error: float
    k3: float
    k3_error: float


@dataclass(frozen=True)
class Budget:
    """A drift and its parts.

    Attributes:
        total: the drift of trainer and engine as the run has them.
        parts: what is switched between the two.
        floors: each side against itself; they are in the total and in every part, so they have no share.
        absent: parts that this run does not have, and why, in words.
    """

    total: Part
    parts: tuple[Part, ...]
    floors: tuple[Part, ...] = ()
    absent: tuple[str, ...] = ()

    def share(self, part: Part) -> float:
        """Of the total's k3; NaN where that is 0."""
        return part.k3 / self.total.k3 if self.total.k3 > 0 else math.nan

    @property
    def remainder(self) -> float:
        """The total's k3 less that of all parts, nats a token.

        Below 0 where parts cancel each other; above where they go together, or where something differs that no switch
        took away.
        """
        return self.total.k3 - sum(part.k3 for part in self.parts)

    @property
    def remainder_error(self) -> float:
        """Its standard error were the parts independent: they are measured on the same tokens, which makes it less."""
        return math.hypot(*(part.k3_error for part in (self.total, *self.parts)))


def part(name: str, switched: str, log_ratio_N: Tensor, rows_N: Tensor) -> Part:
    """Measures one.

    Args:
        name: see `Part`; likewise switched.
        switched: see there.
        log_ratio_N: in nats, any float dtype; tokens that are not finite on one side are left out.
        rows_N: int64, the response of each token.

    Raises:
        ValueError: no token is left.
    """
    known_N = log_ratio_N.isfinite()
    values_N, rows_N = log_ratio_N[known_N].double(), rows_N[known_N]
    if len(values_N) == 0:
        raise ValueError(f"no token has both log-probs of {name}")
    abs_mean, abs_mean_error = _mean(values_N.abs(), rows_N)
    k3, k3_error = _mean(k3_terms(values_N), rows_N)
    return Part(name, switched, len(values_N), abs_mean, abs_mean_error, k3, k3_error)


def _mean(values_N: Tensor, rows_N: Tensor) -> tuple[float, float]:
    """The mean over tokens and its standard error, of a ratio of sums over responses (Cochran 1977, eq. 2.47).

    The error is NaN for a single response.
    """
    tokens_R = torch.bincount(rows_N)
    sums_R = torch.bincount(rows_N, values_N)
    told_R = tokens_R > 0
    tokens_R, sums_R = tokens_R[told_R].double(), sums_R[told_R]
    mean = float(sums_R.sum() / tokens_R.sum())
    count = len(tokens_R)
    if count < 2:
        return mean, math.nan
    squares = float((sums_R - mean * tokens_R).square().sum())
    return mean, math.sqrt(squares * count / (count - 1)) / float(tokens_R.sum())
