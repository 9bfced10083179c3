"""Drift by who wrote a token: which of several engines, and weights of which age."""

from torch import Tensor

from megarl.config.drift_names import AGE, REPLICA
from megarl.drift.groups import Grouping
from megarl.drift.log_ratios import LogRatios, Measures


def origin_measures(
    ratios: LogRatios, grouping: Grouping, replicas_BT: Tensor | None = None, ages_BT: Tensor | None = None
) -> Measures:
    """`GROUP_MEASURES` of the tokens of each replica under `replica_N`, and of each age under `age_N`.

    Args:
        ratios: the tokens.
        grouping: of them.
        replicas_BT: int64, number of the engine that wrote each token, from 0; -1 where it is not known.
        ages_BT: int64, updates that the weights which wrote it are behind those that score it.
    """
    return {
        **_by_number(REPLICA, replicas_BT, ratios, grouping),
        **_by_number(AGE, ages_BT, ratios, grouping),
    }


def _by_number(name: str, numbers_BT: Tensor | None, ratios: LogRatios, grouping: Grouping) -> Measures:
    if numbers_BT is None:
        return {}
    # one up, so that what is not known is a group too, which is left out
    group_N = numbers_BT[ratios.compared_BT] + 1
    names = ["unknown", *(f"{name}_{number}" for number in range(int(group_N.max())))]
    measures = grouping.measures(names, group_N)
    return {key: value for key, value in measures.items() if not key.startswith("unknown/")}
