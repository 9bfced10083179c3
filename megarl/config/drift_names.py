"""Names of the measures of drift, as they stand behind `drift/`, and on which side of a bound each is bad."""

import re
from itertools import pairwise

POSITION_STARTS = (0, 16, 64, 256, 1024, 4096)
"""First positions of the ranges, counted from 0 at a response's first token."""
POSITIONS = (
    *(f"position_{start}_{following - 1}" for start, following in pairwise(POSITION_STARTS)),
    f"position_{POSITION_STARTS[-1]}_up",
)
PROBABILITY_EDGES = (0.01, 0.1, 0.5, 0.9, 0.99)
"""Between the ranges of the engine's probability."""
PROBABILITIES = tuple(
    f"probability_{round(low * 100)}_{round(high * 100)}" for low, high in pairwise((0.0, *PROBABILITY_EDGES, 1.0))
)
"""In percent."""
CLASSES = ("class_digits", "class_end", "class_special", "class_first", "class_rare")
REPLICA, AGE = "replica", "age"

HIGH_IS_BAD = (
    "abs_mean",
    "abs_max",
    "abs_p50",
    "abs_p90",
    "abs_p99",
    "abs_p999",
    "abs_above_ln2_share",
    "outside_band_share",
    "k3",
    "chi2",
    "mult_prob_error",
    "sequence_sum_abs_mean",
    "sequence_sum_abs_max",
    "sequence_mean_abs_mean",
    "sequence_mean_abs_max",
    "pareto_k",
    "token_pareto_k",
    "tokens_without_log_prob",
    "outside_support_share",
)
LOW_IS_BAD = ("ess_share", "token_ess_share", "probability_pearson", "routing_agreement", "routing_overlap")
BOTH_ARE_BAD = ("k1", "sequence_sum_mean", "sequence_geometric_mean", "ppl_ratio", "ppl_trainer", "ppl_rollout")
COUNTS = ("tokens", "responses")
"""What is no drift in itself."""
_GROUP = re.compile("|".join((*POSITIONS, *PROBABILITIES, *CLASSES, rf"(?:{REPLICA}|{AGE})_\d+")))


def bad_side(name: str) -> str | None:
    """'high', 'low' or 'both': where the measure of that name is bad; None where no measure has the name.

    A measure of a group, such as position_0_15/abs_mean, is bad where that of all tokens is.
    """
    group, slash, measure = name.rpartition("/")
    if slash:
        return bad_side(measure) if _GROUP.fullmatch(group) and measure in ("abs_mean", "k1", "k3") else None
    sides = {"high": HIGH_IS_BAD, "low": LOW_IS_BAD, "both": BOTH_ARE_BAD}
    return next((side for side, names in sides.items() if name in names), None)


def boundable() -> tuple[str, ...]:
    """Every name that a bound may be given for; of replicas and ages the first alone."""
    groups = (*POSITIONS, *PROBABILITIES, *CLASSES, f"{REPLICA}_0", f"{AGE}_0")
    of_groups = (f"{group}/{measure}" for group in groups for measure in ("abs_mean", "k1", "k3"))
    return (*HIGH_IS_BAD, *LOW_IS_BAD, *BOTH_ARE_BAD, *of_groups)
