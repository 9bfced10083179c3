"""Hidden states to token log-probs and entropy, fused over the output layer: no logits of more than one chunk exist.

The forward pass keeps two numbers a token; the backward pass forms each chunk's logits anew. Under tensor parallelism
each rank's weight holds some columns of the vocabulary, and the hidden states' gradient is this rank's part of it,
which the region that they came through adds up.
"""

from typing import Any

import torch
from torch import Tensor

from megarl.megatron.chunk_logits import chunk_logits
from megarl.megatron.head_loss import add_product
from megarl.megatron.log_probs import VocabularyShard, chunks, wide


def head_log_probs(
    hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, temperature: float, shard: VocabularyShard
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each distribution, both in nats and fp32 (fp64 of fp64), with gradients.

    Args:
        hidden_NH: what the output layer reads, any floating dtype.
        weight_VH: this rank's rows of its weight, in the same dtype; the product is formed in it.
        targets_N: token ids, of the whole vocabulary.
        temperature: divides the logits.
        shard: which columns of the vocabulary the weight's rows are. The two all-reduces a chunk are its group's.

    Returns:
        log_probs_N, entropy_N.
    """
    log_probs_N, entropy_N = _HeadLogProbs.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, targets_N, temperature, shard
    )
    return log_probs_N, entropy_N


class _HeadLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, temperature: float, shard: VocabularyShard
    ) -> tuple[Tensor, Tensor]:
        log_z_N, log_probs_N, entropy_N = (
            hidden_NH.new_empty(len(targets_N), dtype=wide(hidden_NH.dtype)) for _ in range(3)
        )
        for rows in chunks(len(targets_N), len(weight_VH), hidden_NH.device):
            chunk = chunk_logits(hidden_NH[rows] @ weight_VH.t(), temperature, shard)
            log_z_N[rows], log_probs_N[rows], entropy_N[rows] = chunk.partition(targets_N[rows])
        ctx.save_for_backward(hidden_NH, weight_VH, targets_N, log_z_N, entropy_N)
        ctx.temperature, ctx.shard = temperature, shard
        ctx.set_materialize_grads(False)
        return log_probs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_NH, weight_VH, targets_N, log_z_N, entropy_N = ctx.saved_tensors
        grad_hidden_NH = torch.empty_like(hidden_NH)
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=wide(weight_VH.dtype))
        for rows in chunks(len(targets_N), len(weight_VH), hidden_NH.device):
            chunk = chunk_logits(hidden_NH[rows] @ weight_VH.t(), ctx.temperature, ctx.shard)
            own = [None if gradient_N is None else gradient_N[rows] for gradient_N in gradients]
            grad = chunk.gradient(targets_N[rows], log_z_N[rows], entropy_N[rows], own[0], own[1])
            grad_hidden_NH[rows] = grad @ weight_VH
            add_product(grad_weight_VH, grad, hidden_NH[rows])
        return grad_hidden_NH, grad_weight_VH.to(weight_VH.dtype), None, None, None
