"""What a distribution says of some targets, gathered chunk by chunk, and the gradient of a chunk formed anew."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megarl.megatron.chunk_logits import ChunkLogits
from megarl.megatron.distribution import Distribution
from megarl.megatron.log_probs import wide


class TokenScores(NamedTuple):
    """What a distribution says of some targets.

    Attributes:
        log_probs_N: of the targets: nats, fp32 (fp64 of fp64), with a gradient.
        entropy_N: of the distributions, likewise.
        outside_N: bool, the targets that truncated sampling leaves out; None where it truncates nothing.
    """

    log_probs_N: Tensor
    entropy_N: Tensor
    outside_N: Tensor | None


class ForwardPass:
    """Statistics of N tokens, filled chunk by chunk; what the backward pass and the caller need of them."""

    def __init__(self, tokens: int, like: Tensor, distribution: Distribution) -> None:
        self.log_z_N, self.log_probs_N, self.entropy_N = (
            like.new_empty(tokens, dtype=wide(like.dtype)) for _ in range(3)
        )
        truncates = distribution.sampling.truncates
        self.floor_N = torch.empty_like(self.log_z_N) if truncates else None
        self.outside_N = like.new_empty(tokens, dtype=torch.bool) if truncates else None

    def take(self, rows: slice, chunk: ChunkLogits, targets_N: Tensor) -> None:
        """Works a chunk out."""
        floor_N = chunk.floor()
        if floor_N is not None:
            assert self.floor_N is not None and self.outside_N is not None
            self.floor_N[rows], self.outside_N[rows] = floor_N, chunk.outside(targets_N, floor_N)
        self.log_z_N[rows], self.log_probs_N[rows], self.entropy_N[rows] = chunk.partition(targets_N, floor_N)

    def scores(self, ctx: Any) -> TokenScores:
        """The result, of which the last is marked to have no gradient."""
        if self.outside_N is not None:
            ctx.mark_non_differentiable(self.outside_N)
        ctx.set_materialize_grads(False)
        return TokenScores(self.log_probs_N, self.entropy_N, self.outside_N)


def recomputed_gradient(
    chunk: ChunkLogits,
    targets_N: Tensor,
    statistics: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
    rows: slice,
) -> Tensor:
    """The gradient of a chunk whose logits were formed anew, in their dtype.

    Args:
        chunk: the chunk.
        targets_N: of all tokens, as all that follows.
        statistics: log_z_N, entropy_N and floor_N of a `ForwardPass`.
        gradients: of the loss, by log-probs and by entropies.
        rows: those of the chunk.
    """
    log_z, entropy, floor, by_log_probs, by_entropy = (
        None if value_N is None else value_N[rows] for value_N in (*statistics, *gradients[:2])
    )
    assert log_z is not None and entropy is not None
    return chunk.gradient(targets_N[rows], log_z, entropy, by_log_probs, by_entropy, floor)
