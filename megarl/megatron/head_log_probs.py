"""Hidden states to token log-probs and entropy, fused over the output layer: no logits of more than one chunk exist.

The forward pass keeps two numbers a token, three where sampling is truncated; the backward pass forms each chunk's
logits anew. Under tensor parallelism each rank's weight holds some columns of the vocabulary, and the hidden states'
gradient is this rank's part of it, which the region that they came through adds up.
"""

from typing import Any

import torch
from torch import Tensor

from megarl.megatron.chunk_logits import chunk_logits
from megarl.megatron.distribution import Distribution
from megarl.megatron.head_loss import add_product
from megarl.megatron.log_probs import chunks, wide
from megarl.megatron.token_scores import ForwardPass, TokenScores, recomputed_gradient


def head_log_probs(hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, distribution: Distribution) -> TokenScores:
    """Log-prob of each target and entropy of each distribution.

    Args:
        hidden_NH: what the output layer reads, any floating dtype.
        weight_VH: this rank's rows of its weight, in the same dtype; the product is formed in it.
        targets_N: token ids, of the whole vocabulary.
        distribution: what the logits stand for. Two all-reduces a chunk are its group's, and what `support_floor`
            needs.
    """
    scores = _HeadLogProbs.apply(hidden_NH, weight_VH, targets_N, distribution)  # type: ignore[no-untyped-call]
    return TokenScores(*scores)


class _HeadLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, distribution: Distribution
    ) -> TokenScores:
        found = ForwardPass(len(targets_N), hidden_NH, distribution)
        for rows in chunks(len(targets_N), len(weight_VH), hidden_NH.device):
            logits = distribution.logits(hidden_NH[rows], weight_VH)
            found.take(rows, chunk_logits(logits, distribution), targets_N[rows])
        ctx.save_for_backward(hidden_NH, weight_VH, targets_N, found.log_z_N, found.entropy_N, found.floor_N)
        ctx.distribution = distribution
        return found.scores(ctx)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, Tensor, None, None]:
        hidden_NH, weight_VH, targets_N, *statistics = ctx.saved_tensors
        grad_hidden_NH = torch.empty_like(hidden_NH)
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=wide(weight_VH.dtype))
        for rows in chunks(len(targets_N), len(weight_VH), hidden_NH.device):
            chunk = chunk_logits(ctx.distribution.logits(hidden_NH[rows], weight_VH), ctx.distribution)
            grad = recomputed_gradient(chunk, targets_N, statistics, gradients, rows)
            grad_hidden_NH[rows] = grad @ weight_VH
            add_product(grad_weight_VH, grad, hidden_NH[rows])
            # before the next chunk's logits take their place, not after
            del chunk, grad
        return grad_hidden_NH, grad_weight_VH.to(weight_VH.dtype), None, None
