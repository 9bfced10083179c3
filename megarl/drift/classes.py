"""Drift by what kind of token it is. Kinds overlap: a response's first token may be a digit."""

from enum import IntFlag

import torch
from torch import Tensor

from megarl.config.drift_names import CLASSES
from megarl.drift.groups import Grouping, means
from megarl.drift.log_ratios import LogRatios, Measures


class TokenClass(IntFlag):
    """Kinds of token, the first three by the vocabulary and the others by the batch; in the order of `CLASSES`."""

    DIGITS = 1
    END = 2
    SPECIAL = 4
    FIRST = 8
    RARE = 16


def class_measures(ratios: LogRatios, grouping: Grouping, token_ids_BT: Tensor, classes_V: Tensor) -> Measures:
    """`GROUP_MEASURES` of the tokens of each kind.

    Args:
        ratios: the tokens.
        grouping: of them.
        token_ids_BT: int64, the batch's tokens.
        classes_V: int64, the kinds of each token of the vocabulary, as flags of `TokenClass` added up.

    Returns:
        Those of `class_digits`, `class_end`, `class_special`, `class_first`, the first token of a response, and
        `class_rare`, tokens that the batch has once.
    """
    ids_N = token_ids_BT[ratios.compared_BT]
    once_V = ids_N.bincount(minlength=len(classes_V)) == 1
    of_batch_N = TokenClass.FIRST * (ratios.position_N == 0) + TokenClass.RARE * once_V[ids_N]
    flags_N = classes_V[ids_N] + of_batch_N
    patterns = 2 ** len(CLASSES)
    # each combination of kinds once, then the combinations that a kind is in
    sums_4P = grouping.sums(flags_N, patterns)
    pattern_P = torch.arange(patterns, device=flags_N.device)
    of_kind = [torch.where((pattern_P & kind) > 0, sums_4P, 0.0).sum(dim=1) for kind in TokenClass]
    return means(CLASSES, torch.stack(of_kind, dim=1))
