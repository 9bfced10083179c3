"""KL(policy || reference) over the whole vocabulary at each token, from both models' hidden states.

The reference's logits are never kept: what it gives for a micro-batch is one hidden state a trained token, and both
models' logits are formed in chunks, once in the forward pass and once in the backward pass.
"""

from typing import Any

import torch
from torch import Tensor

from megarl.megatron.distribution import Distribution
from megarl.megatron.head_loss import add_product
from megarl.megatron.log_probs import chunks, log_sum_exp, scaled_logits, wide

_TINY = -20.0
"""Log-ratio of policy to reference below which e^-x is not formed: the token's probability is next to nothing."""


def exact_kl(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    reference_hidden_NH: Tensor,
    reference_weight_VH: Tensor,
    distribution: Distribution,
) -> Tensor:
    """sum_v policy_v (log policy_v - log reference_v) at each token: nats, never negative, fp32 (fp64 of fp64) [N].

    The gradient reaches the policy's hidden states and weight.

    Args:
        hidden_NH: what the policy's output layer reads.
        weight_VH: this rank's rows of its weight.
        reference_hidden_NH: the same of the reference.
        reference_weight_VH: likewise.
        distribution: what both models' logits stand for. It must not truncate: where one model's support has a token
            that the other's lacks, the KL is infinite.

    Raises:
        ValueError: it truncates.
    """
    if distribution.sampling.truncates:
        raise ValueError(f"the exact KL under {distribution.sampling} is infinite where two supports differ")
    kl_N: Tensor = _ExactKL.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, reference_hidden_NH, reference_weight_VH, distribution
    )
    return kl_N


class _ExactKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        reference_hidden_NH: Tensor,
        reference_weight_VH: Tensor,
        distribution: Distribution,
    ) -> Tensor:
        shard = distribution.shard
        log_z_N, reference_log_z_N, kl_N = (
            hidden_NH.new_empty(len(hidden_NH), dtype=wide(hidden_NH.dtype)) for _ in range(3)
        )
        for rows in chunks(len(hidden_NH), len(weight_VH), hidden_NH.device):
            logits = scaled_logits(hidden_NH[rows] @ weight_VH.t(), distribution)
            reference = scaled_logits(reference_hidden_NH[rows] @ reference_weight_VH.t(), distribution)
            log_z_N[rows], reference_log_z_N[rows] = log_sum_exp(logits, shard), log_sum_exp(reference, shard)
            log_p = logits.sub_(log_z_N[rows, None])
            x = log_p - reference.sub_(reference_log_z_N[rows, None])
            p = log_p.exp_()
            # p (e^-x - 1 + x): adds q - p, whose sum is 0, to p x, and leaves no negative term to round
            kl_N[rows] = shard.reduce(
                torch.where(x > _TINY, p * (torch.expm1(-x) + x), reference.exp() - p + p * x).sum(-1)
            )
        ctx.save_for_backward(
            hidden_NH, weight_VH, reference_hidden_NH, reference_weight_VH, log_z_N, reference_log_z_N, kl_N
        )
        ctx.distribution = distribution
        return kl_N

    @staticmethod
    def backward(ctx: Any, grad_kl_N: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_NH, weight_VH, reference_hidden_NH, reference_weight_VH, *statistics = ctx.saved_tensors
        log_z_N, reference_log_z_N, kl_N = statistics
        grad_hidden_NH = torch.empty_like(hidden_NH)
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=wide(weight_VH.dtype))
        for rows in chunks(len(hidden_NH), len(weight_VH), hidden_NH.device):
            logits = scaled_logits(hidden_NH[rows] @ weight_VH.t(), ctx.distribution)
            reference = scaled_logits(reference_hidden_NH[rows] @ reference_weight_VH.t(), ctx.distribution)
            log_p = logits.sub_(log_z_N[rows, None])
            x = log_p - reference.sub_(reference_log_z_N[rows, None])
            # d KL / d logit = p (x - KL)
            scale = grad_kl_N[rows, None] / ctx.distribution.sampling.temperature
            grad = (log_p.exp_() * (x - kl_N[rows, None]) * scale).to(hidden_NH.dtype)
            grad_hidden_NH[rows] = grad @ weight_VH
            add_product(grad_weight_VH, grad, hidden_NH[rows])
        return grad_hidden_NH, grad_weight_VH.to(weight_VH.dtype), None, None, None
