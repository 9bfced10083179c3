"""Logits to token log-probs and entropy, for a model that returns logits.

The vocabulary may be split over a tensor-parallel group. Tokens are worked through in chunks, so a copy of the logits
is never larger than one chunk; the backward pass forms each chunk's softmax anew. The temperature divides the logits,
as the engine's sampler does, never the log-probs.
"""

from typing import Any

import torch
from torch import Tensor

from megarl.megatron.chunk_logits import chunk_logits
from megarl.megatron.distribution import Distribution
from megarl.megatron.log_probs import chunks
from megarl.megatron.token_scores import ForwardPass, TokenScores, recomputed_gradient


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


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, distribution: Distribution) -> TokenScores:
        found = ForwardPass(len(targets_N), logits_NV, distribution)
        for rows in chunks(len(targets_N), logits_NV.shape[1], logits_NV.device):
            found.take(rows, chunk_logits(logits_NV[rows], distribution, keep=True), targets_N[rows])
        ctx.save_for_backward(logits_NV, targets_N, found.log_z_N, found.entropy_N, found.floor_N)
        ctx.distribution = distribution
        return found.scores(ctx)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None, None]:
        logits_NV, targets_N, *statistics = ctx.saved_tensors
        grad_NV = torch.empty_like(logits_NV)
        for rows in chunks(len(targets_N), logits_NV.shape[1], logits_NV.device):
            chunk = chunk_logits(logits_NV[rows], ctx.distribution, keep=True)
            grad_NV[rows] = recomputed_gradient(chunk, targets_N, statistics, gradients, rows)
        return grad_NV, None, None
