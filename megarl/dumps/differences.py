"""Bootstrap tests of the differences between two dumps.

Responses are what is resampled (Efron and Tibshirani 1993, chapter 8): the tokens of one response are not independent,
responses are. The dumps are resampled apart, so they need not hold the same prompts.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megarl.drift.log_ratios import k3_terms
from megarl.drift.tokens import is_outside_band
from megarl.dumps.measured import Measured
from megarl.objectives.covariance import named_generator

UNITS = {
    "mean |Delta|": "nats",
    "outside 0.9 to 1.1": "share of tokens",
    "|Delta| above ln 2": "share of tokens",
    "k1 of KL(engine, trainer)": "nats a token",
    "k3 of KL(engine, trainer)": "nats a token",
    "mean |sum of Delta|": "nats a response",
    "effective sample size": "share of responses",
    "length": "tokens a response",
    "reward": "mean",
}
"""Measures by name, with their units."""
INTERVAL = (0.025, 0.975)
_AT_ONCE = 2**22
"""Counts of responses that are held at a time, and their weights beside them."""


@dataclass(frozen=True)
class Difference:
    """One measure of two dumps.

    Attributes:
        name: a key of `UNITS`.
        first: the first dump's.
        second: the second's.
        low: lower end of the 95 % interval of second - first.
        high: upper end.
        p_value: two-sided, of no difference; its least value is 2 / (resamples + 1).
    """

    name: str
    first: float
    second: float
    low: float
    high: float
    p_value: float

    @property
    def differs(self) -> bool:
        """Whether 0 lies outside the interval."""
        return self.low > 0 or self.high < 0


def differences(first: Measured, second: Measured, resamples: int, seed: int) -> list[Difference]:
    """Each measure of the two, with the interval and the p-value of their difference."""
    sides = [(side.ratios.sum_R, _sums(side)) for side in (first, second)]
    of_whole = [_measures(torch.ones(1, len(side[1]), dtype=torch.float64), *side) for side in sides]
    of_drawn = [_resampled(*side, resamples, f"drift/compare/{seed}/{n}") for n, side in enumerate(sides)]
    return [
        _difference(name, of_whole[0][name].item(), of_whole[1][name].item(), of_drawn[0][name], of_drawn[1][name])
        for name in UNITS
    ]


def _sums(found: Measured) -> Tensor:
    """What the measures that are ratios of sums are formed from, a row a response: fp64 [R, 8]."""
    log_ratio_N = found.ratios.log_ratio_N
    absolute_N, outside_N = log_ratio_N.abs(), is_outside_band(log_ratio_N)
    row_N = torch.repeat_interleave(torch.arange(len(found.tokens_R)), found.tokens_R)
    of_tokens = (absolute_N, outside_N, absolute_N > math.log(2), -log_ratio_N, k3_terms(log_ratio_N))
    summed = [torch.bincount(row_N, values_N.double(), minlength=len(found.tokens_R)) for values_N in of_tokens]
    return torch.stack([*summed, found.tokens_R.double(), found.ratios.sum_R.abs(), found.rewards_R], dim=1)


def _resampled(log_weights_R: Tensor, sums_RM: Tensor, resamples: int, name: str) -> dict[str, Tensor]:
    """Each measure [S], over S resamples of the responses, with replacement."""
    generator, rows = named_generator(name), len(sums_RM)
    size = max(1, _AT_ONCE // rows)
    parts = []
    for begin in range(0, resamples, size):
        drawn_SR = torch.randint(rows, (min(size, resamples - begin), rows), generator=generator)
        counts_SR = torch.zeros(drawn_SR.shape, dtype=torch.float64)
        counts_SR.scatter_add_(1, drawn_SR, torch.ones_like(counts_SR))
        parts.append(_measures(counts_SR, log_weights_R, sums_RM))
    return {measure: torch.cat([part[measure] for part in parts]) for measure in UNITS}


def _measures(counts_SR: Tensor, log_weights_R: Tensor, sums_RM: Tensor) -> dict[str, Tensor]:
    """Each measure [S], of the responses as often as they are drawn."""
    absolute, outside, above_ln2, k1, k3, tokens, sequence, reward = (counts_SR @ sums_RM).t()
    responses = len(sums_RM)
    # a constant factor of all weights leaves their effective size; each resample's own, for one without the dump's
    # largest weight may have none that fp64 tells from 0 beside it
    drawn_SR = log_weights_R.masked_fill(counts_SR == 0, -torch.inf)
    weights_SR = (drawn_SR - drawn_SR.amax(dim=1, keepdim=True)).exp()
    weights, squares = ((counts_SR * power).sum(dim=1) for power in (weights_SR, weights_SR.square()))
    values = (
        absolute / tokens,
        outside / tokens,
        above_ln2 / tokens,
        k1 / tokens,
        k3 / tokens,
        sequence / responses,
        weights.square() / squares / responses,
        tokens / responses,
        reward / responses,
    )
    return dict(zip(UNITS, values, strict=True))


def _difference(name: str, first: float, second: float, first_S: Tensor, second_S: Tensor) -> Difference:
    difference_S = second_S - first_S
    low, high = difference_S.quantile(torch.tensor(INTERVAL, dtype=torch.float64)).tolist()
    # one more on either side: no finite number of resamples shows a probability of 0 (Davison and Hinkley 1997, 4.25)
    tails = [(int((side * difference_S <= 0).sum()) + 1) / (len(difference_S) + 1) for side in (1, -1)]
    return Difference(name, first, second, low, high, min(1.0, 2 * min(tails)))
