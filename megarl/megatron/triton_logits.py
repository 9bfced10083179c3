"""The two passes over one chunk's logits by Triton kernels.

The logits stay in their own dtype, and no copy is made. Where sampling is truncated they are first scaled into fp32 by
torch: a floor is one of those very numbers, and rounded otherwise it might lie below itself.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from megarl.megatron.distribution import Distribution
from megarl.megatron.log_probs import scaled_logits
from megarl.megatron.support import is_outside, support_floor
from megarl.platform.cuda.softmax import softmax_gradient, softmax_statistics


class TritonLogits:
    """See `megarl.megatron.chunk_logits.ChunkLogits`. fp32, bf16 or fp16; the arithmetic is fp32."""

    def __init__(self, logits_NV: Tensor, distribution: Distribution, *, keep: bool) -> None:
        self.dtype, self.distribution, self.shard = logits_NV.dtype, distribution, distribution.shard
        self.is_scaled = distribution.sampling.truncates
        self.logits_NV, self.keep = logits_NV, keep and not self.is_scaled
        self.scale = 1 / distribution.sampling.temperature
        if self.is_scaled:
            self.logits_NV, self.scale = scaled_logits(logits_NV.to(torch.float32, copy=keep), distribution), 1.0

    def floor(self) -> Tensor | None:
        """See `ChunkLogits`."""
        return support_floor(self.logits_NV, self.distribution) if self.is_scaled else None

    def outside(self, targets_N: Tensor, floor_N: Tensor) -> Tensor:
        """See `ChunkLogits`."""
        return is_outside(self.logits_NV, floor_N, targets_N, self.shard)

    def partition(self, targets_N: Tensor, floor_N: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """See `ChunkLogits`."""
        start, valid = self.shard.start, self.shard.valid
        statistics_N4 = softmax_statistics(self.logits_NV, targets_N, self.scale, start, valid, floor_N)
        own_top_N, total_N, weighted_N, target_N = statistics_N4.unbind(-1)
        top_N = self.shard.reduce(own_top_N.clone(), dist.ReduceOp.MAX)
        # this rank's sums, as if the largest logit of all ranks had been taken off
        change_N = own_top_N - top_N
        kept_N = change_N.exp()
        _, mine_N = self.shard.columns_of(targets_N)
        sums_3N = self.shard.reduce(
            torch.stack(
                [
                    kept_N * total_N,
                    kept_N * (weighted_N + total_N * change_N),
                    (target_N - top_N).where(mine_N, 0.0),
                ]
            )
        )
        log_sum_N = sums_3N[0].log()
        return top_N + log_sum_N, sums_3N[2] - log_sum_N, log_sum_N - sums_3N[1] / sums_3N[0]

    def gradient(
        self,
        targets_N: Tensor,
        log_z_N: Tensor,
        entropy_N: Tensor,
        grad_log_probs_N: Tensor | None,
        grad_entropy_N: Tensor | None,
        floor_N: Tensor | None,
    ) -> Tensor:
        """See `ChunkLogits`."""
        out_NV = torch.empty_like(self.logits_NV) if self.keep else self.logits_NV
        by_log_probs_N, by_entropy_N = grad_log_probs_N, grad_entropy_N
        if self.is_scaled:
            # what the kernel's scale does elsewhere
            by_log_probs_N, by_entropy_N = (
                None if by_N is None else by_N / self.distribution.sampling.temperature
                for by_N in (grad_log_probs_N, grad_entropy_N)
            )
        softmax_gradient(
            self.logits_NV,
            targets_N,
            log_z_N,
            entropy_N,
            torch.zeros_like(log_z_N) if by_log_probs_N is None else by_log_probs_N,
            by_entropy_N,
            self.scale,
            self.shard.start,
            self.shard.valid,
            floor_N,
            out_NV=out_NV,
        )
        return out_NV.to(self.dtype)
