"""Hidden states to a loss that is local to the token: its gradient is formed in the forward pass, chunk by chunk.

Where a token's loss depends on no other token, all that the backward pass needs is known as soon as a chunk's logits
are. They are formed once, and what is kept are the gradients of hidden states and weight, whose sizes are theirs.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from megarl.megatron.chunk_logits import chunk_logits
from megarl.megatron.distribution import Distribution
from megarl.megatron.log_probs import chunks, wide

TokenLoss = Callable[[Tensor, Tensor, slice], Tensor]
"""Log-probs [n] and entropies [n] of some tokens, and which of all tokens they are, to their summed loss."""


def head_loss(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    distribution: Distribution,
    token_loss: TokenLoss,
) -> Tensor:
    """The sum of a token-local loss, a scalar, with gradients by hidden states and weight.

    Args:
        hidden_NH: what the output layer reads, any floating dtype.
        weight_VH: this rank's rows of its weight, in the same dtype.
        targets_N: token ids, of the whole vocabulary.
        distribution: what the logits stand for.
        token_loss: called once a chunk, in order.
    """
    total: Tensor = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, targets_N, distribution, token_loss
    )
    return total


def add_product(total_VH: Tensor, grad_NV: Tensor, hidden_NH: Tensor) -> None:
    """Adds grad^T hidden to an fp32 sum, without a second copy of its size where the dtypes allow."""
    if grad_NV.dtype == total_VH.dtype:
        total_VH.addmm_(grad_NV.t(), hidden_NH)
    else:
        total_VH += grad_NV.t() @ hidden_NH


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        targets_N: Tensor,
        distribution: Distribution,
        token_loss: TokenLoss,
    ) -> Tensor:
        loss = hidden_NH.new_zeros((), dtype=wide(hidden_NH.dtype))
        grad_hidden_NH = torch.empty_like(hidden_NH)
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=wide(weight_VH.dtype))
        for rows in chunks(len(targets_N), len(weight_VH), hidden_NH.device):
            chunk = chunk_logits(distribution.logits(hidden_NH[rows], weight_VH), distribution)
            floor = chunk.floor()
            log_z, log_probs, entropy = chunk.partition(targets_N[rows], floor)
            with torch.enable_grad():
                leaves = (log_probs.detach().requires_grad_(), entropy.detach().requires_grad_())
                chunk_loss = token_loss(*leaves, rows)
            by_log_probs, by_entropy = torch.autograd.grad(chunk_loss, leaves, allow_unused=True)
            loss += chunk_loss.detach()
            grad = chunk.gradient(targets_N[rows], log_z, entropy, by_log_probs, by_entropy, floor)
            torch.mm(grad, weight_VH, out=grad_hidden_NH[rows])
            add_product(grad_weight_VH, grad, hidden_NH[rows])
            # before the next chunk's logits take their place, not after
            del chunk, grad
        ctx.save_for_backward(grad_hidden_NH, grad_weight_VH.to(weight_VH.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_hidden_NH, grad_weight_VH = ctx.saved_tensors
        # in place: the gradients are this function's own, and are handed on once
        return grad_hidden_NH.mul_(grad_loss), grad_weight_VH.mul_(grad_loss), None, None, None
