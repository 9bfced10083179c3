"""Logits to token log-probs and entropy, for a model that returns logits.

The vocabulary may be split over a tensor-parallel group. Tokens are worked through in chunks, so a copy of the logits
is never larger than one chunk; the backward pass forms each chunk's softmax anew. The temperature divides the logits,
as the engine's sampler does, never the log-probs.
"""

from typing import Any

import torch
from torch import Tensor

from megarl.megatron.chunk_logits import chunk_logits
from megarl.megatron.log_probs import VocabularyShard, chunks, wide


def token_log_probs(
    logits_NV: Tensor, targets_N: Tensor, temperature: float, shard: VocabularyShard
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each distribution, both in nats and fp32 (fp64 of fp64), with gradients.

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


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, targets_N: Tensor, temperature: float, shard: VocabularyShard
    ) -> tuple[Tensor, Tensor]:
        log_z_N, log_probs_N, entropy_N = (
            logits_NV.new_empty(len(targets_N), dtype=wide(logits_NV.dtype)) for _ in range(3)
        )
        for rows in chunks(len(targets_N), logits_NV.shape[1], logits_NV.device):
            chunk = chunk_logits(logits_NV[rows], temperature, shard, keep=True)
            log_z_N[rows], log_probs_N[rows], entropy_N[rows] = chunk.partition(targets_N[rows])
        ctx.save_for_backward(logits_NV, targets_N, log_z_N, entropy_N)
        ctx.temperature, ctx.shard = temperature, shard
        ctx.set_materialize_grads(False)
        return log_probs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None, None, None]:
        logits_NV, targets_N, log_z_N, entropy_N = ctx.saved_tensors
        grad_NV = torch.empty_like(logits_NV)
        for rows in chunks(len(targets_N), logits_NV.shape[1], logits_NV.device):
            chunk = chunk_logits(logits_NV[rows], ctx.temperature, ctx.shard, keep=True)
            own = [None if gradient_N is None else gradient_N[rows] for gradient_N in gradients]
            grad_NV[rows] = chunk.gradient(targets_N[rows], log_z_N[rows], entropy_N[rows], own[0], own[1])
        return grad_NV, None, None, None
