"""Logits to token log-probs and entropy: the one function that training, the reference, drift and evaluation call.

The vocabulary may be split over a tensor-parallel group. Tokens are worked through in chunks, so the fp32 copy of
the logits is never larger than one chunk; the backward pass forms each chunk's softmax anew. The temperature divides
the logits, as the engine's sampler does, never the log-probs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

CHUNK_BYTES = 64 * 2**20
"""Size of one fp32 copy of a chunk's logits; about four of them are alive at once."""
_NEGLIGIBLE = -1e30
"""Logit of a padded vocabulary row: its probability is exactly 0, and 0 times it is 0, which -inf would not give."""


@dataclass(frozen=True)
class VocabularyShard:
    """Which columns of the vocabulary this rank's logits are.

    Attributes:
        group: the tensor-parallel process group, or None where the logits are whole.
        start: index of the first column in the vocabulary.
        valid: number of leading columns that are real tokens; the rest pad the shard.
    """

    group: dist.ProcessGroup | None
    start: int
    valid: int

    @staticmethod
    def of(columns: int, vocab_size: int, group: dist.ProcessGroup | None) -> "VocabularyShard":
        """The shard of this rank, given its number of logit columns."""
        start = 0 if group is None else dist.get_rank(group) * columns
        return VocabularyShard(group, start, max(0, min(columns, vocab_size - start)))

    def reduce(self, value: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """Reduces over the group, in place."""
        if self.group is not None and dist.get_world_size(self.group) > 1:
            dist.all_reduce(value, op=op, group=self.group)
        return value


def token_log_probs(
    logits_NV: Tensor, targets_N: Tensor, temperature: float, shard: VocabularyShard
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each distribution, both in nats and fp32, with gradients.

    Args:
        logits_NV: this rank's columns of the logits, any floating dtype.
        targets_N: token ids, of the whole vocabulary.
        temperature: divides the logits.
        shard: which columns these are. The two all-reduces of the forward pass are its group's.

    Returns:
        log_probs_N, entropy_N.
    """
    log_probs_N, entropy_N = _TokenLogProbs.apply(  # type: ignore[no-untyped-call]
        logits_NV, targets_N, temperature, shard
    )
    return log_probs_N, entropy_N


def _scaled(logits_NV: Tensor, temperature: float, shard: VocabularyShard) -> Tensor:
    scaled = logits_NV.float()
    if temperature != 1.0:
        scaled = scaled / temperature
    if shard.valid < scaled.shape[-1]:
        scaled = scaled.clone() if scaled is logits_NV else scaled
        scaled[..., shard.valid :] = _NEGLIGIBLE
    return scaled


def _chunks(logits_NV: Tensor) -> Iterator[slice]:
    """Rows to work through at once."""
    tokens, columns = logits_NV.shape
    size = max(1, CHUNK_BYTES // (4 * columns))
    return (slice(begin, begin + size) for begin in range(0, tokens, size))


def _local_targets(targets_N: Tensor, shard: VocabularyShard) -> tuple[Tensor, Tensor]:
    """Column of each target, and whether this rank holds it."""
    columns_N = targets_N - shard.start
    mine_N = (columns_N >= 0) & (columns_N < shard.valid)
    return columns_N.where(mine_N, 0), mine_N


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, targets_N: Tensor, temperature: float, shard: VocabularyShard
    ) -> tuple[Tensor, Tensor]:
        count = len(targets_N)
        log_z_N, log_probs_N, entropy_N = (logits_NV.new_empty(count, dtype=torch.float32) for _ in range(3))
        for rows in _chunks(logits_NV):
            scaled = _scaled(logits_NV[rows], temperature, shard)
            top = shard.reduce(scaled.amax(dim=-1), dist.ReduceOp.MAX)
            shifted = scaled - top[:, None]
            exponentials = shifted.exp()
            columns, mine = _local_targets(targets_N[rows], shard)
            target = shifted.gather(-1, columns[:, None])[:, 0].where(mine, 0.0)
            # one all-reduce for the partition sum, the entropy's numerator and the target's logit
            sums = shard.reduce(torch.stack([exponentials.sum(-1), (exponentials * shifted).sum(-1), target]))
            log_sum = sums[0].log()
            log_z_N[rows] = top + log_sum
            log_probs_N[rows] = sums[2] - log_sum
            entropy_N[rows] = log_sum - sums[1] / sums[0]
        ctx.save_for_backward(logits_NV, targets_N, log_z_N, entropy_N)
        ctx.temperature, ctx.shard = temperature, shard
        return log_probs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        grad_log_probs_N, grad_entropy_N = gradients
        logits_NV, targets_N, log_z_N, entropy_N = ctx.saved_tensors
        grad_NV = torch.empty_like(logits_NV)
        for rows in _chunks(logits_NV):
            log_p = _scaled(logits_NV[rows], ctx.temperature, ctx.shard) - log_z_N[rows, None]
            p = log_p.exp()
            # d log p_target = onehot - p;  d entropy = -p (log p + H)
            grad = -p * (grad_log_probs_N[rows, None] + grad_entropy_N[rows, None] * (log_p + entropy_N[rows, None]))
            columns, mine = _local_targets(targets_N[rows], ctx.shard)
            grad.scatter_add_(-1, columns[:, None], grad_log_probs_N[rows].where(mine, 0.0)[:, None])
            grad_NV[rows] = (grad / ctx.temperature).to(grad_NV.dtype)
        return grad_NV, None, None, None
