"""Logits to token log-probs and entropy, and the chunk-wise arithmetic that `head_log_probs` shares.

The vocabulary may be split over a tensor-parallel group. Tokens are worked through in chunks, so the fp32 copy of
the logits is never larger than one chunk; the backward pass forms each chunk's softmax anew. The temperature divides
the logits, as the engine's sampler does, never the log-probs. Where sampling is truncated, log-probs and entropies are
those of the distribution over the survivors, the target always among them: see `support`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megarl.megatron.distribution import Distribution, VocabularyShard
from megarl.megatron.support import NEGLIGIBLE, is_outside, restrict, support_floor

CHUNK_BYTES = 64 * 2**20
"""Size of one fp32 copy of a chunk's logits; up to three of them are alive at once."""


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


def token_log_probs(logits_NV: Tensor, targets_N: Tensor, distribution: Distribution) -> TokenScores:
    """Log-prob of each target and entropy of each distribution.

    Args:
        logits_NV: this rank's columns of the logits, any floating dtype.
        targets_N: token ids, of the whole vocabulary.
        distribution: what the logits stand for. Two all-reduces a chunk of the forward pass are its group's, and what
            `support_floor` needs.
    """
    scores = _TokenLogProbs.apply(logits_NV, targets_N, distribution)  # type: ignore[no-untyped-call]
    return TokenScores(*scores)


def wide(dtype: torch.dtype) -> torch.dtype:
    """What logits of this dtype are worked through in: fp32, or fp64 for fp64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def scaled_logits(logits_NV: Tensor, distribution: Distribution) -> Tensor:
    """One chunk's logits in the wide dtype, over the temperature and without what pads the vocabulary.

    May write into an argument of that dtype.
    """
    scaled = logits_NV.to(wide(logits_NV.dtype))
    if distribution.sampling.temperature != 1.0:
        scaled = scaled.div_(distribution.sampling.temperature)
    if distribution.shard.valid < scaled.shape[-1]:
        scaled[..., distribution.shard.valid :] = NEGLIGIBLE
    return scaled


def chunks(tokens: int, columns: int) -> Iterator[slice]:
    """Rows to work through at once."""
    size = max(1, CHUNK_BYTES // (4 * columns))
    return (slice(begin, begin + size) for begin in range(0, tokens, size))


def log_partition(
    logits_NV: Tensor, targets_N: Tensor, shard: VocabularyShard, floor_N: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One chunk's partition sums, log-probs and entropies, each [N] and over the whole vocabulary.

    Args:
        logits_NV: what `scaled_logits` gave; it is left restricted to its support, its rows' largest logits taken off.
        targets_N: token ids, of the whole vocabulary.
        shard: which columns these are.
        floor_N: see `support_floor`.

    Returns:
        The largest logit; the log-partition less that; the log-prob of the target; the entropy.
    """
    restrict(logits_NV, floor_N, targets_N, shard)
    top_N = shard.reduce(logits_NV.amax(dim=-1), dist.ReduceOp.MAX)
    shifted_NV = logits_NV.sub_(top_N[:, None])
    columns_N, mine_N = shard.columns_of(targets_N)
    target_N = shifted_NV.gather(-1, columns_N[:, None])[:, 0].where(mine_N, 0.0)
    exponentials_NV = shifted_NV.exp()
    # one all-reduce for the partition sum, the entropy's numerator and the target's logit
    total_N = exponentials_NV.sum(-1)
    sums = shard.reduce(torch.stack([total_N, exponentials_NV.mul_(shifted_NV).sum(-1), target_N]))
    log_sum_N = sums[0].log()
    return top_N, log_sum_N, sums[2] - log_sum_N, log_sum_N - sums[1] / sums[0]


def log_sum_exp(logits_NV: Tensor, shard: VocabularyShard) -> Tensor:
    """One chunk's log-partition [N], over the whole vocabulary."""
    top_N = shard.reduce(logits_NV.amax(dim=-1), dist.ReduceOp.MAX)
    return top_N + shard.reduce((logits_NV - top_N[:, None]).exp_().sum(-1)).log()


def softmax_gradient(
    logits_NV: Tensor,
    targets_N: Tensor,
    log_z_N: Tensor,
    entropy_N: Tensor,
    grad_log_probs_N: Tensor | None,
    grad_entropy_N: Tensor | None,
    distribution: Distribution,
    floor_N: Tensor | None = None,
) -> Tensor:
    """Gradient [N, V] of one chunk's logits before the temperature, from those of its log-probs and entropies.

    Args:
        logits_NV: what `scaled_logits` gave, or that less one number a row; overwritten.
        targets_N: token ids, of the whole vocabulary.
        log_z_N: log-partition of those.
        entropy_N: of the forward pass.
        grad_log_probs_N: of the loss; likewise grad_entropy_N. None where the loss does not read them.
        grad_entropy_N: see there.
        distribution: what the logits stand for.
        floor_N: of these logits, see `support_floor`; None where they are restricted already.
    """
    temperature, shard = distribution.sampling.temperature, distribution.shard
    restrict(logits_NV, floor_N, targets_N, shard)
    # over the temperature here, on [N], and not on [N, V] at the end
    by_log_probs_N = torch.zeros_like(log_z_N) if grad_log_probs_N is None else grad_log_probs_N / -temperature
    log_p_NV = logits_NV.sub_(log_z_N[:, None])
    # d log p_target = onehot - p;  d entropy = -p (log p + H)
    if grad_entropy_N is None:
        grad_NV = log_p_NV.exp_().mul_(by_log_probs_N[:, None])
    else:
        by_entropy_N = grad_entropy_N / -temperature
        factor_NV = (log_p_NV + entropy_N[:, None]).mul_(by_entropy_N[:, None]).add_(by_log_probs_N[:, None])
        grad_NV = log_p_NV.exp_().mul_(factor_NV)
    columns_N, mine_N = shard.columns_of(targets_N)
    return grad_NV.scatter_add_(-1, columns_N[:, None], -by_log_probs_N.where(mine_N, 0.0)[:, None])


class ForwardPass:
    """Statistics of N tokens, filled chunk by chunk; what the backward pass and the caller need of them."""

    def __init__(self, tokens: int, like: Tensor, distribution: Distribution) -> None:
        self._distribution = distribution
        self.log_z_N, self.log_probs_N, self.entropy_N = (
            like.new_empty(tokens, dtype=wide(like.dtype)) for _ in range(3)
        )
        truncates = distribution.sampling.truncates
        self.floor_N = torch.empty_like(self.log_z_N) if truncates else None
        self.outside_N = like.new_empty(tokens, dtype=torch.bool) if truncates else None

    def take(self, rows: slice, logits_NV: Tensor, targets_N: Tensor) -> None:
        """Works out a chunk from what `scaled_logits` gave, which is overwritten."""
        shard = self._distribution.shard
        floor_N = support_floor(logits_NV, self._distribution)
        if floor_N is not None:
            assert self.floor_N is not None and self.outside_N is not None
            self.floor_N[rows], self.outside_N[rows] = floor_N, is_outside(logits_NV, floor_N, targets_N, shard)
        top_N, log_sum_N, self.log_probs_N[rows], self.entropy_N[rows] = log_partition(
            logits_NV, targets_N, shard, floor_N
        )
        self.log_z_N[rows] = top_N + log_sum_N

    def scores(self, ctx: Any) -> TokenScores:
        """The result, of which the last is marked to have no gradient."""
        if self.outside_N is not None:
            ctx.mark_non_differentiable(self.outside_N)
        ctx.set_materialize_grads(False)
        return TokenScores(self.log_probs_N, self.entropy_N, self.outside_N)


def recomputed_gradient(
    logits_NV: Tensor,
    targets_N: Tensor,
    statistics: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
    rows: slice,
    distribution: Distribution,
) -> Tensor:
    """`softmax_gradient` of a chunk whose logits were formed anew.

    Args:
        logits_NV: of the chunk, overwritten.
        targets_N: of all tokens, as all that follows.
        statistics: log_z_N, entropy_N and floor_N of a `ForwardPass`.
        gradients: of the loss, by log-probs and by entropies.
        rows: the chunk.
        distribution: what the logits stand for.
    """
    log_z, entropy, floor, by_log_probs, by_entropy = (
        None if value_N is None else value_N[rows] for value_N in (*statistics, *gradients[:2])
    )
    assert log_z is not None and entropy is not None
    return softmax_gradient(logits_NV, targets_N[rows], log_z, entropy, by_log_probs, by_entropy, distribution, floor)


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, distribution: Distribution) -> TokenScores:
        found = ForwardPass(len(targets_N), logits_NV, distribution)
        for rows in chunks(*logits_NV.shape):
            found.take(rows, _copied(logits_NV[rows], distribution), targets_N[rows])
        ctx.save_for_backward(logits_NV, targets_N, found.log_z_N, found.entropy_N, found.floor_N)
        ctx.distribution = distribution
        return found.scores(ctx)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None, None]:
        logits_NV, targets_N, *statistics = ctx.saved_tensors
        grad_NV = torch.empty_like(logits_NV)
        for rows in chunks(*logits_NV.shape):
            logits = _copied(logits_NV[rows], ctx.distribution)
            gradient = recomputed_gradient(logits, targets_N, statistics, gradients, rows, ctx.distribution)
            grad_NV[rows] = gradient.to(grad_NV.dtype)
        return grad_NV, None, None


def _copied(logits_NV: Tensor, distribution: Distribution) -> Tensor:
    return scaled_logits(logits_NV.to(wide(logits_NV.dtype), copy=True), distribution)
