"""Tokens that were drawn behind the same tokens: there the unknown normaliser of both sides' log-probs drops out.

Responses to one prompt begin with the same context, and share the next one as long as their tokens are the same. A
log-prob is a logit less a normaliser that depends on the context alone; the difference of two tokens' log-probs in one
context is that of their logits, divided by the temperature.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from megarl.drift.diagnosis.reported import Reported


def shared_contexts(
    starts: Sequence[Hashable | None], lengths: Sequence[int], tokens: Sequence[int], weights: Sequence[int]
) -> Tensor:
    """Int64 [N]: numbers of contexts, -1 where a token shares its own with no other.

    Args:
        starts: of each response, equal where prompt and step are; None where the prompt is not known.
        lengths: tokens of each response.
        tokens: [N], those of all responses end to end.
        weights: [N], the version that drew each: keys and values of other weights make another context.
    """
    contexts_N = torch.full((len(tokens),), -1)
    begins = [0]
    for length in lengths:
        begins.append(begins[-1] + length)
    by_start: dict[Hashable, list[int]] = defaultdict(list)
    for row, start in enumerate(starts):
        if start is not None:
            by_start[start].append(row)
    waiting = [(rows, 0) for rows in by_start.values()]
    number = 0
    while waiting:
        rows, depth = waiting.pop()
        by_weights: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            if depth < lengths[row]:
                by_weights[weights[begins[row] + depth]].append(row)
        for members in by_weights.values():
            if len(members) == 1:
                continue
            by_token: dict[int, list[int]] = defaultdict(list)
            for row in members:
                contexts_N[begins[row] + depth] = number
                by_token[tokens[begins[row] + depth]].append(row)
            number += 1
            waiting += [(same, depth + 1) for same in by_token.values() if len(same) > 1]
    return contexts_N


@dataclass(frozen=True)
class Contexts:
    """The C contexts that several tokens share, and the P pairs of a context and a token in it.

    Attributes:
        members_M: the tokens with log-probs of both sides in such contexts, by their number in the dump.
        pairs_M: the pair that each is.
        context_P: the context of each pair; pairs of one context follow each other.
        engine_P: fp64, mean of the engine's log-probs of the pair, in nats.
        trainer_P: likewise.
    """

    members_M: Tensor
    pairs_M: Tensor
    context_P: Tensor
    engine_P: Tensor
    trainer_P: Tensor

    @staticmethod
    def of(reported: Reported) -> "Contexts":
        """Of a dump's tokens."""
        known_N = reported.engine_N.isfinite() & reported.trainer_N.isfinite()
        members_M = (known_N & (reported.contexts_N >= 0)).nonzero()[:, 0]
        both_M2 = torch.stack([reported.contexts_N[members_M], reported.targets_N[members_M]], dim=1)
        pairs_P2, pairs_M, count_P = torch.unique(both_M2, dim=0, return_inverse=True, return_counts=True)
        sides = (
            torch.zeros(len(pairs_P2), dtype=torch.float64).index_add_(0, pairs_M, side_N[members_M]) / count_P
            for side_N in (reported.engine_N, reported.trainer_N)
        )
        return Contexts(members_M, pairs_M, pairs_P2[:, 0], *sides)

    @cached_property
    def _places_P(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """Each pair's place in its context, from 0."""
        _, inverse_P, count_C = torch.unique_consecutive(self.context_P, return_inverse=True, return_counts=True)
        begins_C = count_C.cumsum(0) - count_C
        places_P: Tensor = torch.arange(len(self.context_P)) - begins_C[inverse_P]
        return places_P

    @property
    def later_P(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """Bool: all pairs of a context but the first; K of them."""
        return self._places_P > 0

    def contrasts(self, values_P: Tensor) -> Tensor:
        """[K]: each pair's value less the mean of those before it in its context, scaled to keep the variance.

        Helmert's contrasts: what is the same for a whole context drops out, and independent errors stay independent
        and as large as they are.
        """
        places_P = self._places_P.double()
        sums_P = values_P.cumsum(0)
        begins_P = torch.arange(len(values_P)) - self._places_P
        before_P = sums_P - values_P - (sums_P - values_P)[begins_P]
        contrast_P = (values_P - before_P / places_P.clamp(min=1)) * (places_P / (places_P + 1)).sqrt()
        return contrast_P[self.later_P]

    def repeated(self, side_N: Tensor) -> float | None:
        """Mean distance, in nats, of a side's log-probs of one token in one context from the first of them."""
        values_M = side_N[self.members_M]
        order_M = self.pairs_M.argsort(stable=True)
        pairs_M, values_M = self.pairs_M[order_M], values_M[order_M]
        _, inverse_M, count_P = torch.unique_consecutive(pairs_M, return_inverse=True, return_counts=True)
        first_M = (count_P.cumsum(0) - count_P)[inverse_M]
        again_M = torch.arange(len(values_M)) != first_M
        return float((values_M - values_M[first_M]).abs()[again_M].mean()) if again_M.any() else None
