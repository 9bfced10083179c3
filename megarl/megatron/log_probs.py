"""From one chunk's logits to log-probs, entropies and their gradient, in torch operations; and what a chunk is.

The vocabulary may be split over a tensor-parallel group. Tokens are worked through in chunks, so the fp32 copy of
the logits is never larger than one chunk; the backward pass forms each chunk's softmax anew. The temperature divides
the logits, as the engine's sampler does, never the log-probs. Where sampling is truncated, log-probs and entropies are
those of the distribution over the survivors, the target always among them: see `support`.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from megarl.megatron.distribution import Distribution, VocabularyShard
from megarl.megatron.support import NEGLIGIBLE, restrict

CHUNK_BYTES = 64 * 2**20
"""Size of one fp32 copy of a chunk's logits on a CPU; up to three of them are alive at once."""
GPU_CHUNK_TOKENS = 1024
"""Tokens of a chunk on a GPU. Each chunk reads the output layer's weight; under some 300 tokens that read takes longer
than the product (295 operations a byte on an H100 in bf16, and 2 a token for a weight of 2 bytes)."""


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


def chunks(tokens: int, columns: int, device: torch.device) -> Iterator[slice]:
    """Rows to work through at once."""
    size = GPU_CHUNK_TOKENS if device.type == "cuda" else max(1, CHUNK_BYTES // (4 * columns))
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
