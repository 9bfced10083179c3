"""The same few measures of the tokens of each group, for all groups in one pass."""

from collections.abc import Sequence

import torch
from torch import Tensor

from megarl.drift.log_ratios import LogRatios, Measures, k3_terms

GROUP_MEASURES = ("tokens", "abs_mean", "k1", "k3")
"""Tokens of a group, and the measures of them that `token_measures` has under the same names."""


class Grouping:
    """Sums over groups of a batch's tokens; what is summed is formed once for all ways to group them."""

    def __init__(self, ratios: LogRatios) -> None:
        """Args: ratios: the tokens."""
        log_ratio_N = ratios.log_ratio_N
        self._terms = (log_ratio_N.abs(), -log_ratio_N, k3_terms(log_ratio_N))

    def sums(self, group_N: Tensor, groups: int) -> Tensor:
        """Tokens and sums of |D|, -D and k3's terms by group: fp64 [4, groups]. group_N: int64, from 0."""
        tokens_G = torch.bincount(group_N, minlength=groups).double()
        return torch.stack([tokens_G, *(group_N.bincount(term_N, minlength=groups) for term_N in self._terms)])

    def measures(self, names: Sequence[str], group_N: Tensor) -> Measures:
        """`name/` and each of `GROUP_MEASURES`, for each group in the order of its number; all NaN without a token."""
        return means(names, self.sums(group_N, len(names)))


def means(names: Sequence[str], sums_4G: Tensor) -> Measures:
    """The measures of groups from their sums; see `Grouping`."""
    tokens_G = torch.where(sums_4G[0] > 0, sums_4G[0], torch.nan)
    values_G4 = torch.cat([tokens_G[None], sums_4G[1:] / tokens_G]).t()
    keys = [f"{name}/{measure}" for name in names for measure in GROUP_MEASURES]
    return dict(zip(keys, values_G4.flatten().unbind(), strict=True))
