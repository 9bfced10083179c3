"""The measures of a whole dump, by the names that a run's metrics have under `drift/`."""

from torch import Tensor

from megarl.drift.buckets import position_measures, probability_measures
from megarl.drift.groups import Grouping
from megarl.drift.log_ratios import numbers
from megarl.drift.origins import origin_measures
from megarl.drift.sequences import sequence_measures
from megarl.drift.tokens import token_measures
from megarl.drift.weights import weight_measures
from megarl.dumps.measured import Measured


def statistics(found: Measured) -> dict[str, float]:
    """Counts, and measures of tokens, responses, weights and groups; see `megarl.drift.measures.drift_metrics`."""
    ratios = found.ratios
    grouping = Grouping(ratios)
    counts = {
        "tokens": float(found.tokens),
        "tokens_without_log_prob": float(found.tokens - len(ratios.log_ratio_N)),
        "responses": float(len(found.tokens_R)),
    }
    measures = {
        **token_measures(ratios),
        **sequence_measures(ratios),
        **weight_measures(ratios),
        **position_measures(ratios, grouping),
        **probability_measures(ratios, grouping),
        **origin_measures(ratios, grouping, _told_apart(found.replica_N), _told_apart(found.age_N)),
    }
    return {**counts, **numbers(measures)}


def _told_apart(number_N: Tensor) -> Tensor | None:
    """The numbers as a batch of one row; None where there are not two."""
    return number_N[None] if int(number_N.max()) > 0 else None
