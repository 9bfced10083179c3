"""Whether a side rounds its logits: they lie on a grid then, which its log-probs still show.

A log-prob is a logit divided by the temperature, less a normaliser. The normaliser is a sum over the vocabulary, whose
rounding errors average out, so the model's own is near enough to the side's to give the side's logit back to a fraction
of a 16-bit number's spacing. Rounded logits stand on whole spacings; others stand anywhere.
"""

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from megarl.drift.diagnosis.computation import Dtype
from megarl.drift.diagnosis.distance import DECIDES, Distance

_FRACTION_BITS: dict[Dtype, int] = {"bf16": 7, "fp16": 10}


@dataclass(frozen=True)
class Scored:
    """One scoring of N tokens. Attributes: logits_N: of the tokens, fp64. log_probs_N: in nats, fp64."""

    logits_N: Tensor
    log_probs_N: Tensor

    def normaliser(self, temperature: float) -> Tensor:
        """What the log-probs are less than the logits, times the temperature."""
        return self.logits_N - temperature * self.log_probs_N


@dataclass(frozen=True)
class Grid:
    """How a side's logits lie to the grid of a dtype.

    Attributes:
        found: mean cosine of their phases on it: 1 on the grid, 0 anywhere.
        expected: of logits that the side rounds, as far as the model's normaliser is the side's.
        error: standard error of either where phases are anywhere.
    """

    found: float
    expected: float
    error: float

    @staticmethod
    def of(side_N: Tensor, temperature: float, dtype: Dtype, *, wide: Scored, rounded: Scored, exact: Scored) -> "Grid":
        """Of a side's log-probs [N], in nats.

        Args:
            side_N: NaN where it has none.
            temperature: of the side's sampling.
            dtype: of 16 bits.
            wide: the model with logits that are not rounded to it.
            rounded: with logits that are.
            exact: the model in the precision that stands for exact arithmetic.
        """
        logits_N = wide.logits_N + temperature * (side_N - wide.log_probs_N)
        # 0 is on every grid, and tells none
        known_N = side_N.isfinite() & (logits_N != 0)
        spacing_N = torch.exp2(torch.floor(torch.log2(logits_N.abs())) - _FRACTION_BITS[dtype])

        def cosine(apart_N: Tensor) -> float:
            return float((2 * math.pi * apart_N / spacing_N).cos()[known_N].mean())

        own_N = wide.normaliser(temperature)
        # what side and model do not share of the errors before the output layer, by their log-probs
        unshared = Distance.between(side_N, wide.log_probs_N).mean
        share = unshared / max(Distance.between(exact.log_probs_N, wide.log_probs_N).mean, sys.float_info.min)
        by_rounding = cosine(own_N - rounded.normaliser(temperature))
        by_the_rest = cosine(min(share, math.sqrt(2)) * (own_N - exact.normaliser(temperature)))
        count = int(known_N.sum())
        return Grid(cosine(logits_N), by_rounding * by_the_rest, 1 / math.sqrt(2 * max(1, count)))

    @property
    def is_on(self) -> bool:
        """Whether the logits are on the grid more often than by chance."""
        return self.found > DECIDES * self.error

    @property
    def is_off(self) -> bool:
        """Whether they are on it less often than rounded ones would be."""
        return not self.is_on and self.found < self.expected - DECIDES * self.error
