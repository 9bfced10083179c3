"""Sequence level: what the differences of single tokens add up to over whole responses."""

from megarl.drift.log_ratios import LogRatios, Measures


def sequence_measures(ratios: LogRatios) -> Measures:
    """Measures of R > 0 responses.

    Returns:
        Of the sums of D = log trainer - log rollout, in nats: `sequence_sum_mean`, `sequence_sum_abs_mean` and
        `sequence_sum_abs_max`. Of the means, in nats a token: `sequence_mean_abs_mean` and `sequence_mean_abs_max`.
        `sequence_geometric_mean`, mean over responses of their tokens' geometric mean ratio, e^(mean D). `ppl_trainer`
        and `ppl_rollout`, means of the responses' perplexities e^(-mean log-prob); `ppl_ratio`, mean of the one over
        the other.
    """
    sum_abs_R, mean_abs_R = ratios.sum_R.abs(), ratios.mean_R.abs()
    return {
        "sequence_sum_mean": ratios.sum_R.mean(),
        "sequence_sum_abs_mean": sum_abs_R.mean(),
        "sequence_sum_abs_max": sum_abs_R.max(),
        "sequence_mean_abs_mean": mean_abs_R.mean(),
        "sequence_mean_abs_max": mean_abs_R.max(),
        "sequence_geometric_mean": ratios.mean_R.exp().mean(),
        "ppl_trainer": (-ratios.trainer_mean_R).exp().mean(),
        "ppl_rollout": (-ratios.rollout_mean_R).exp().mean(),
        "ppl_ratio": (-ratios.mean_R).exp().mean(),
    }
