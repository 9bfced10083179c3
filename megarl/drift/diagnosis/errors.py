"""Rounding errors: each scoring's distance from exact arithmetic, and whether two scorings err alike."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megarl.drift.diagnosis.distance import DECIDES, Distance

_COARSER = 2.0
"""Errors so many times the model's own are not the model's own."""


@dataclass(frozen=True)
class Errors:
    """Mean distances from exact arithmetic in nats a token, over the tokens that the side has a log-prob of.

    Attributes:
        side: of the side's log-probs.
        model: of the model's.
        hypothesis: of those with another precision switched on.
        correlation: of the ranks of the side's errors and the hypothesis's (Spearman): errors have far outliers, which
            would sway one of the errors themselves.
        tokens: number of them.
    """

    side: float
    model: float
    hypothesis: float
    correlation: float
    tokens: int

    @staticmethod
    def of(exact_N: Tensor, side_N: Tensor, model_N: Tensor, hypothesis_N: Tensor) -> "Errors":
        """From four scorings of the same tokens, in nats."""
        known_N = side_N.isfinite()
        side, model, hypothesis = (
            Distance.between(scored_N[known_N], exact_N[known_N]) for scored_N in (side_N, model_N, hypothesis_N)
        )
        pair_2N = torch.stack([_ranks(side.log_ratio_N), _ranks(hypothesis.log_ratio_N)])
        correlation = float(torch.corrcoef(pair_2N)[0, 1].nan_to_num(0.0))
        return Errors(side.mean, model.mean, hypothesis.mean, correlation, int(known_N.sum()))

    @property
    def likelihood(self) -> float:
        """Of the side's errors where the hypothesis is what they come from, as its logarithm in nats a token.

        Up to a constant of the side's. Two terms: how well the hypothesis's errors foretell the side's by their ranks
        (the information that normal variables of that correlation share), and what it costs that their mean sizes
        differ (of exponential distributions, the divergence of one with the hypothesis's mean from the side's).
        """
        ratio = self.side / self.hypothesis
        shared = -0.5 * math.log1p(-(min(max(self.correlation, 0.0), 1 - 1e-12) ** 2))
        return shared - (ratio - 1 - math.log(ratio))

    @property
    def is_coarser(self) -> bool:
        """Whether the hypothesis errs far more than the model."""
        return self.hypothesis > _COARSER * self.model

    def alike(self, *, is_nearer: bool) -> bool:
        """Whether the side errs as the hypothesis does rather than as the model does.

        Its errors must be nearer in size to the hypothesis's. Where those are far beyond the model's own they must
        correlate beyond chance (Fisher's transformation); where they are not, the model's own roundings, which both
        share, correlate whatever the cause is, and the side must be nearer to the hypothesis token by token.

        Args:
            is_nearer: whether it is.
        """
        # a hypothesis that is exact arithmetic errs by nothing: it explains all or is none
        if not self.hypothesis or not self.side or not self.model:
            return False
        if abs(math.log(self.side / self.hypothesis)) >= abs(math.log(self.side / self.model)):
            return False
        if not self.is_coarser:
            return is_nearer
        return math.atanh(min(self.correlation, 1 - 1e-12)) * math.sqrt(max(0, self.tokens - 3)) > DECIDES


def _ranks(values_N: Tensor) -> Tensor:
    """fp64; equal values have the mean of their ranks."""
    _, inverse_N, count_U = torch.unique(values_N, return_inverse=True, return_counts=True)
    ranks_U: Tensor = count_U.cumsum(0).double() - (count_U - 1) / 2
    return ranks_U[inverse_N]
