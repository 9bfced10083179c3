"""Whether the importance weights can be trusted: how many samples they are worth, and how heavy their tail is."""

from torch import Tensor

from megarl.drift.log_ratios import LogRatios, Measures
from megarl.drift.pareto import pareto_k


def weight_measures(ratios: LogRatios) -> Measures:
    """Measures of the weights e^D of N > 0 tokens and e^(sum of D) of R > 0 responses.

    Returns:
        `ess_share`, effective sample size of the responses' weights as a share of them, and `pareto_k`, their k-hat;
        `token_ess_share` and `token_pareto_k` of the tokens' weights. Without a k-hat where there is none: see
        `pareto_k`.
    """
    k_of = {"pareto_k": pareto_k(ratios.sum_R), "token_pareto_k": pareto_k(ratios.log_ratio_N)}
    return {
        "ess_share": effective_share(ratios.sum_R),
        "token_ess_share": effective_share(ratios.log_ratio_N),
        **{name: ratios.sum_R.new_tensor(k) for name, k in k_of.items() if k is not None},
    }


def effective_share(log_weights_N: Tensor) -> Tensor:
    """(sum w)^2 / (N sum w^2), from 1/N to 1, of N > 0 weights; from their logs, so that none overflows."""
    weights_N = (log_weights_N - log_weights_N.max()).exp()
    # the largest weight is 1: neither sum is below it
    effective = weights_N.sum().square() / weights_N.square().sum()
    return effective.clamp(1, len(log_weights_N)) / len(log_weights_N)
