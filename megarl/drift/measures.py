"""All measures of drift of one batch of rollouts, on the unmodified mask, before anything is clipped or dropped."""

from torch import Tensor

from megarl.drift.buckets import position_measures, probability_measures
from megarl.drift.classes import class_measures
from megarl.drift.groups import Grouping
from megarl.drift.log_ratios import LogRatios, Measures, numbers
from megarl.drift.origins import origin_measures
from megarl.drift.sequences import sequence_measures
from megarl.drift.tokens import token_measures
from megarl.drift.weights import weight_measures


def drift_metrics(
    trainer_log_probs_BT: Tensor,
    rollout_log_probs_BT: Tensor,
    mask_BT: Tensor,
    *,
    token_ids_BT: Tensor | None = None,
    classes_V: Tensor | None = None,
    replicas_BT: Tensor | None = None,
    ages_BT: Tensor | None = None,
) -> dict[str, float]:
    """The drift of one batch of rollouts. Statistics are formed in fp64.

    Args:
        trainer_log_probs_BT: log-prob of each token by the trainer, at the weights that the engine was given.
        rollout_log_probs_BT: log-prob that the engine reported; a token without a finite one is left out and counted.
        mask_BT: bool, the generated tokens.
        token_ids_BT: int64, the tokens; with `classes_V` they are told apart by kind.
        classes_V: int64, see `class_measures`.
        replicas_BT: int64, see `origin_measures`; likewise `ages_BT`.
        ages_BT: int64.

    Returns:
        The counts `tokens`, `tokens_without_log_prob` and `responses`, of those with a token that is compared. Where
        there is one, the measures of `token_measures`, `sequence_measures` and `weight_measures`, and those of groups:
        `position_measures`, `probability_measures`, and where they are told, `class_measures` and `origin_measures`.
        What is beyond the range of fp64 is its largest number; a mean over nothing is left out.
    """
    ratios = LogRatios.of(trainer_log_probs_BT, rollout_log_probs_BT, mask_BT)
    tokens = mask_BT.sum()
    counts = {
        "tokens": tokens,
        "tokens_without_log_prob": tokens - len(ratios.log_ratio_N),
        "responses": tokens.new_tensor(len(ratios.sum_R)),
    }
    if len(ratios.log_ratio_N) == 0:
        return numbers(counts)
    grouping = Grouping(ratios)
    of_class: Measures = {}
    if token_ids_BT is not None and classes_V is not None:
        of_class = class_measures(ratios, grouping, token_ids_BT, classes_V)
    return numbers(
        {
            **counts,
            **token_measures(ratios),
            **sequence_measures(ratios),
            **weight_measures(ratios),
            **position_measures(ratios, grouping),
            **probability_measures(ratios, grouping),
            **of_class,
            **origin_measures(ratios, grouping, replicas_BT, ages_BT),
        }
    )
