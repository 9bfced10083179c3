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

CHUNK_BYTES = 128 * 2**20
"""Size of one fp32 copy of a chunk's logits on a CPU; up to two of them are alive at once. Each chunk's product packs
the output layer's weight anew, which costs as much as some 40 tokens of it do."""
_ROWS = 16
"""A chunk of more tokens than this is a multiple of it: the product's kernel leaves no remainder."""
GPU_CHUNK_TOKENS = 1024
"""Tokens of a chunk on a GPU. Each chunk reads the output layer's weight; under some 300 tokens that read takes longer
than the product (295 operations a byte on an H100 in bf16, and 2 a token for a weight of 2 bytes)."""
_TILE_NUMBERS, _TILE_COLUMNS = 2**18, 1024
"""Numbers of a tile of a chunk's columns, so few that its exponentials stay in the cache; and its fewest columns."""


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
    size = GPU_CHUNK_TOKENS
    if device.type != "cuda":
        size = max(1, CHUNK_BYTES // (4 * columns))
        size = size // _ROWS * _ROWS or size
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
    total_N, weighted_N = torch.zeros_like(top_N), torch.zeros_like(top_N)
    for tile_NC in _tiles(shifted_NV):
        exponentials_NC = tile_NC.exp()
        total_N += exponentials_NC.sum(-1)
        weighted_N += exponentials_NC.mul_(tile_NC).sum(-1)
    # one all-reduce for the partition sum, the entropy's numerator and the target's logit
    sums = shard.reduce(torch.stack([total_N, weighted_N, target_N]))
    log_sum_N = sums[0].log()
    return top_N, log_sum_N, sums[2] - log_sum_N, log_sum_N - sums[1] / sums[0]


def _tiles(chunk_NV: Tensor) -> Iterator[Tensor]:
    """Views of some columns of it each; a temporary of a tile's size is no copy of the chunk."""
    columns = max(_TILE_COLUMNS, _TILE_NUMBERS // max(1, len(chunk_NV)))
    return iter(chunk_NV.split(columns, dim=-1))


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
    # d log p_target = onehot - p;  d entropy = -p (log p + H)
    for tile_NC in _tiles(logits_NV):
        log_p_NC = tile_NC.sub_(log_z_N[:, None])
        factor_N1 = by_log_probs_N[:, None]
        if grad_entropy_N is None:
            log_p_NC.exp_().mul_(factor_N1)
        else:
            by_entropy_N = grad_entropy_N / -temperature
            factor_NC = (log_p_NC + entropy_N[:, None]).mul_(by_entropy_N[:, None]).add_(factor_N1)
            log_p_NC.exp_().mul_(factor_NC)
    columns_N, mine_N = shard.columns_of(targets_N)
    return logits_NV.scatter_add_(-1, columns_N[:, None], -by_log_probs_N.where(mine_N, 0.0)[:, None])
