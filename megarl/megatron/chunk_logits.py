"""The two passes over one chunk's logits, as torch operations or as Triton kernels, and the choice between them."""

import functools
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from megarl.megatron.distribution import Distribution
from megarl.megatron.log_probs import log_partition, scaled_logits, softmax_gradient, wide
from megarl.megatron.support import is_outside, support_floor
from megarl.platform.invariant.elementary import log
from megarl.platform.invariant.rows import exp_sums
from megarl.platform.kernel_support import check_kernels


class ChunkLogits(Protocol):
    """One chunk's logits [N, V / tensor], its own to overwrite; both passes are over the whole vocabulary."""

    def floor(self) -> Tensor | None:
        """See `support_floor`; before the passes."""
        ...

    def outside(self, targets_N: Tensor, floor_N: Tensor) -> Tensor:
        """See `is_outside`; before the passes."""
        ...

    def partition(self, targets_N: Tensor, floor_N: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Log-partition, log-prob of the target and entropy, each [N] and in nats. Two all-reduces.

        Args:
            targets_N: token ids, of the whole vocabulary.
            floor_N: what `floor` gave.
        """
        ...

    def gradient(
        self,
        targets_N: Tensor,
        log_z_N: Tensor,
        entropy_N: Tensor,
        grad_log_probs_N: Tensor | None,
        grad_entropy_N: Tensor | None,
        floor_N: Tensor | None,
    ) -> Tensor:
        """Gradient of the logits before the temperature, in their dtype. Once, and last.

        Args:
            targets_N: see `partition`, which gave the next two.
            log_z_N: see there.
            entropy_N: see there.
            grad_log_probs_N: of the loss; likewise grad_entropy_N. None where the loss does not read them.
            grad_entropy_N: see there.
            floor_N: see `partition`.
        """
        ...


def chunk_logits(logits_NV: Tensor, distribution: Distribution, *, keep: bool = False) -> ChunkLogits:
    """The passes over these logits: Triton's on a GPU, torch's elsewhere, of fp64 and where they are batch-invariant.

    Args:
        logits_NV: this rank's columns, any floating dtype.
        distribution: what they stand for.
        keep: whether the argument is left as it is.

    Raises:
        UserError: they are on a GPU and triton is not installed.
    """
    if distribution.batch_invariant:
        return InvariantLogits(logits_NV, distribution, keep=keep)
    path = _kernels() if takes_kernels(logits_NV) else TorchLogits
    return path(logits_NV, distribution, keep=keep)


def takes_kernels(logits_NV: Tensor) -> bool:
    """Whether these logits are the kernels', whose arithmetic is fp32."""
    return logits_NV.is_cuda and logits_NV.dtype != torch.float64


@functools.cache
def _kernels() -> Callable[..., ChunkLogits]:
    check_kernels()
    # a process without a GPU needs no triton
    from megarl.megatron.triton_logits import TritonLogits

    return TritonLogits


class TorchLogits:
    """See `ChunkLogits`. Holds the logits in fp32 (fp64 of fp64), scaled, and from the first pass on shifted."""

    def __init__(self, logits_NV: Tensor, distribution: Distribution, *, keep: bool) -> None:
        self.dtype, self.distribution = logits_NV.dtype, distribution
        self.logits_NV = scaled_logits(logits_NV.to(wide(logits_NV.dtype), copy=keep), distribution)
        self.taken_off_N: Tensor | None = None

    def floor(self) -> Tensor | None:
        """See `ChunkLogits`."""
        return support_floor(self.logits_NV, self.distribution)

    def outside(self, targets_N: Tensor, floor_N: Tensor) -> Tensor:
        """See `ChunkLogits`."""
        return is_outside(self.logits_NV, floor_N, targets_N, self.distribution.shard)

    def partition(self, targets_N: Tensor, floor_N: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """See `ChunkLogits`."""
        self.taken_off_N, log_sum_N, log_probs_N, entropy_N = log_partition(
            self.logits_NV, targets_N, self.distribution.shard, floor_N
        )
        return self.taken_off_N + log_sum_N, log_probs_N, entropy_N

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
        left_N = log_z_N if self.taken_off_N is None else log_z_N - self.taken_off_N
        return softmax_gradient(
            self.logits_NV,
            targets_N,
            left_N,
            entropy_N,
            grad_log_probs_N,
            grad_entropy_N,
            self.distribution,
            # the first pass has restricted the logits; a floor less what was taken off could round to another token
            floor_N if self.taken_off_N is None else None,
        ).to(self.dtype)


class InvariantLogits(TorchLogits):
    """See `ChunkLogits`. The bits of a token's log-prob depend on its own logits alone, however they are split."""

    def partition(self, targets_N: Tensor, floor_N: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """See `ChunkLogits`; of the whole vocabulary."""
        assert floor_N is None, "a recipe with precision.batch_invariant and top-p or top-k is refused"
        shard = self.distribution.shard
        self.taken_off_N = shard.reduce(self.logits_NV.amax(dim=-1), dist.ReduceOp.MAX)
        shifted_NV = self.logits_NV.sub_(self.taken_off_N[:, None])
        columns_N, mine_N = shard.columns_of(targets_N)
        target_N = shifted_NV.gather(-1, columns_N[:, None])[:, 0].where(mine_N, 0.0)
        sums_2N = shard.reduce(torch.stack([exp_sums(shifted_NV), target_N.double()]))
        log_sum_N = log(sums_2N[0])
        log_probs_N = (sums_2N[1] - log_sum_N).to(shifted_NV.dtype)
        log_sum_N = log_sum_N.to(shifted_NV.dtype)
        mean_N = shard.reduce(shifted_NV.mul((shifted_NV - log_sum_N[:, None]).exp_()).sum(dim=-1))
        return self.taken_off_N + log_sum_N, log_probs_N, log_sum_N - mean_N
