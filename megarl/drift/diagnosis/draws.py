"""Whether tokens look drawn from the probabilities that a side gives them, without any other token's probability."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megarl.drift.diagnosis.contexts import Contexts


@dataclass(frozen=True)
class Draws:
    """How often tokens of one context are equal, against what a side's probabilities of them expect.

    Of two draws from q, given the first, the second is equal to it with the probability that q gives it. So the share
    of a token's companions that are equal to it, less that probability, is 0 in the mean, whatever q gives the tokens
    that nobody drew.

    Attributes:
        equal: mean share of companions in a token's context that are the same token.
        expected: mean probability of the tokens by the side.
        errors: standard errors that the former is above the latter; contexts are the independent units.
        contexts: number of them.
    """

    equal: float
    expected: float
    errors: float
    contexts: int

    @staticmethod
    def of(contexts: Contexts, side_N: Tensor) -> "Draws":
        """By one side's log-probs [N], in nats."""
        if not len(contexts.members_M):
            return Draws(0.0, 0.0, 0.0, 0)
        context_M = contexts.context_P[contexts.pairs_M]
        _, number_M, size_C = torch.unique(context_M, return_inverse=True, return_counts=True)
        same_P = torch.bincount(contexts.pairs_M, minlength=len(contexts.context_P))
        companions_M = (size_C[number_M] - 1).double()
        # a companion without a log-prob is none
        paired_M = companions_M > 0
        equal_M = (same_P[contexts.pairs_M] - 1).double() / companions_M.clamp(min=1)
        probability_M = side_N[contexts.members_M].exp()
        beyond_M = torch.where(paired_M, equal_M - probability_M, 0.0)
        beyond_C = torch.zeros(len(size_C), dtype=torch.float64).index_add_(0, number_M, beyond_M)
        spread = float(beyond_C.square().sum().sqrt())
        return Draws(
            float(equal_M[paired_M].mean()) if paired_M.any() else math.nan,
            float(probability_M[paired_M].mean()) if paired_M.any() else math.nan,
            float(beyond_C.sum()) / spread if spread > 0 else 0.0,
            int((size_C > 1).sum()),
        )


def excess(log_ratio_N: Tensor) -> float:
    """Standard errors by which the mean ratio of other probabilities to a side's is above 1, over tokens.

    Over draws from the side's distribution it is at most 1, whatever the others are: a sum of the others'
    probabilities. A mean above it says that the tokens are no such draws, and one far outlier, which is in the error
    too, says nothing.

    Args:
        log_ratio_N: of the other's log-prob less the side's, in nats; NaN where one of them has none.
    """
    beyond_M = log_ratio_N[~log_ratio_N.isnan()].exp() - 1
    spread = float(beyond_M.square().sum().sqrt())
    return float(beyond_M.sum()) / spread if 0 < spread < math.inf else 0.0
