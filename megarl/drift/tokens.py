"""Token level: how far the log-probs of single tokens lie apart.

D = log trainer - log rollout at the token that the engine sampled, in nats.
"""

import math

from torch import Tensor

from megarl.drift.log_ratios import LogRatios, Measures, k3_terms

RATIO_BAND = (0.9, 1.1)
QUANTILES = {"abs_p50": 0.5, "abs_p90": 0.9, "abs_p99": 0.99, "abs_p999": 0.999}


def token_measures(ratios: LogRatios) -> Measures:
    """Measures of N > 0 tokens.

    Returns:
        `abs_mean`, `abs_max` and quantiles of |D| (nats); `abs_above_ln2_share`, of tokens whose probability differs by
        more than a factor of 2; `outside_band_share`, of ratios e^D outside [0.9, 1.1]; `k1` and `k3`, estimates of
        KL(rollout || trainer) (nats a token); `chi2`, of the chi-square divergence of the trainer from the engine, as
        mean (e^D - 1)^2, which has the expectation of mean e^2D - 1 and is never negative; `mult_prob_error`, mean
        e^|D|; `probability_pearson`, correlation of the probabilities, NaN where one side's are all the same.
    """
    log_ratio_N = ratios.log_ratio_N
    absolute_N = log_ratio_N.abs().sort().values
    return {
        "abs_mean": absolute_N.mean(),
        "abs_max": absolute_N[-1],
        **{name: _sorted_quantile(absolute_N, q) for name, q in QUANTILES.items()},
        "abs_above_ln2_share": (absolute_N > math.log(2)).double().mean(),
        "outside_band_share": is_outside_band(log_ratio_N).double().mean(),
        "k1": -log_ratio_N.mean(),
        "k3": k3_terms(log_ratio_N).mean(),
        "chi2": log_ratio_N.expm1().square().mean(),
        "mult_prob_error": absolute_N.exp().mean(),
        "probability_pearson": _pearson(ratios.trainer_N.exp(), ratios.rollout_N.exp()),
    }


def is_outside_band(log_ratio_N: Tensor) -> Tensor:
    """Bool: whether a token's ratio e^D lies outside `RATIO_BAND`."""
    ratio_less_1_N = log_ratio_N.expm1()
    return (ratio_less_1_N < RATIO_BAND[0] - 1) | (ratio_less_1_N > RATIO_BAND[1] - 1)


def _sorted_quantile(sorted_N: Tensor, q: float) -> Tensor:
    """The smallest value with at least a share q of the values at or below it (torch.quantile refuses 2^24 values)."""
    return sorted_N[max(0, -int(-q * len(sorted_N) // 1) - 1)]


def _pearson(x_N: Tensor, y_N: Tensor) -> Tensor:
    x_N, y_N = x_N - x_N.mean(), y_N - y_N.mean()
    # the root of each, so that their product does not vanish where the sums do not
    return ((x_N * y_N).sum() / x_N.square().sum().sqrt() / y_N.square().sum().sqrt()).clamp(-1.0, 1.0)
