"""How far apart two scorings of the same tokens are, and whether one is nearer than another."""

import math
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

DECIDES = 4.0
"""Standard errors by which one scoring must be nearer; by chance 3 in a hundred thousand are."""
EXPLAINS = 0.5
"""Share of a drift that an experiment must take away to name its cause: more than is left for all else together."""


@dataclass(frozen=True)
class Distance:
    """Of one scoring from a side's.

    Attributes:
        log_ratio_N: its log-prob of each token less the side's, in nats, fp64; NaN where one of them has none.
    """

    log_ratio_N: Tensor

    @staticmethod
    def between(one_N: Tensor, other_N: Tensor) -> "Distance":
        """Tokens to which one side gives no probability at all are infinitely far."""
        return Distance(one_N.double() - other_N.double())

    @cached_property
    def _known_M(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        return self.log_ratio_N[~self.log_ratio_N.isnan()]

    @cached_property
    def mean(self) -> float:
        """Of the absolute values, over the tokens that both have a log-prob of; 0 where there is none."""
        return float(self._known_M.abs().mean()) if len(self._known_M) else 0.0

    @cached_property
    def bias(self) -> float:
        """Mean log-ratio: what does not average out over tokens."""
        return float(self._known_M.mean()) if len(self._known_M) else 0.0

    @property
    def is_biased(self) -> bool:
        """Whether the bias is beyond what errors without one would give."""
        count = len(self._known_M)
        return count > 1 and abs(self.bias) > DECIDES * float(self._known_M.std()) / math.sqrt(count)

    def explained(self, before: "Distance") -> float:
        """The share of an earlier mean distance that is gone; below 0 where it grew."""
        return 1 - self.mean / before.mean if before.mean > 0 else 0.0

    def nearer_than(self, other: "Distance") -> float:
        """By how many standard errors more tokens are nearer than not: a sign test, which no outlier sways."""
        own_N, other_N = self.log_ratio_N.abs(), other.log_ratio_N.abs()
        nearer, farther = int((own_N < other_N).sum()), int((own_N > other_N).sum())
        return (nearer - farther) / math.sqrt(max(1, nearer + farther))
