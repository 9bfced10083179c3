"""From logits to log-probs under a sampling, and whether tokens look as if they were drawn from it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megarl.drift.diagnosis.rollouts import Sampling


@dataclass(frozen=True)
class Distributions:
    """N distributions over V tokens, and the one of each that was drawn.

    Attributes:
        logits_NV: before the temperature, fp32 or fp64.
        targets_N: the tokens drawn.
    """

    logits_NV: Tensor
    targets_N: Tensor

    def log_probs(self, sampling: Sampling) -> Tensor:
        """fp64 [N]: of the tokens drawn, which count among those left: near the edge two sides may differ on one."""
        return self._all(sampling).gather(1, self.targets_N[:, None])[:, 0].double()

    @property
    def drawn_N(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """fp64, the logits of the tokens drawn."""
        return self.logits_NV.gather(1, self.targets_N[:, None])[:, 0].double()

    def surprise(self, sampling: Sampling) -> float:
        """By how many standard errors the tokens' mean log-prob is above what is expected of draws."""
        log_probs_NV = self._all(sampling).double()
        drawn_N = log_probs_NV.gather(1, self.targets_N[:, None])[:, 0]
        probs_NV = log_probs_NV.exp()
        finite_NV = torch.where(log_probs_NV.isfinite(), log_probs_NV, 0.0)
        mean_N = (probs_NV * finite_NV).sum(dim=1)
        variance_N = (probs_NV * finite_NV.square()).sum(dim=1) - mean_N.square()
        spread = float(variance_N.clamp(min=0).sum())
        return float((drawn_N - mean_N).sum()) / math.sqrt(spread) if spread > 0 else 0.0

    def kept_mass(self, sampling: Sampling) -> float:
        """Mean share of the probability that the sampling's truncation leaves."""
        whole = Sampling(sampling.temperature)
        return float((self.log_probs(whole) - self.log_probs(sampling)).exp().mean())

    def _all(self, sampling: Sampling) -> Tensor:
        logits_NV = self.logits_NV / sampling.temperature
        if sampling.banned:
            banned = torch.tensor(sampling.banned)
            logits_NV[:, banned] = -torch.inf
        left_NV = truncated(logits_NV, sampling.top_p, sampling.top_k)
        targets_N1 = self.targets_N[:, None]
        return left_NV.scatter(1, targets_N1, logits_NV.gather(1, targets_N1)).log_softmax(dim=1)


def truncated(logits_NV: Tensor, top_p: float, top_k: int) -> Tensor:
    """The logits with -inf for what top-k, then top-p, leave out; those that tie with the last one left stay."""
    if top_k:
        least_N1 = logits_NV.topk(min(top_k, logits_NV.shape[1]), dim=1).values[:, -1:]
        logits_NV = logits_NV.masked_fill(logits_NV < least_N1, -torch.inf)
    if top_p < 1:
        sorted_NV = logits_NV.sort(dim=1, descending=True).values
        reached_NV = sorted_NV.softmax(dim=1).double().cumsum(dim=1)
        last_N1 = (reached_NV < top_p).sum(dim=1, keepdim=True).clamp(max=logits_NV.shape[1] - 1)
        logits_NV = logits_NV.masked_fill(logits_NV < sorted_NV.gather(1, last_N1), -torch.inf)
    return logits_NV
