"""The two passes over one chunk's logits, as torch operations or as Triton kernels, and the choice between them."""

import functools
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from megarl.megatron.log_probs import VocabularyShard, log_partition, scaled_logits, softmax_gradient, wide
from megarl.platform.kernel_support import check_kernels


class ChunkLogits(Protocol):
    """One chunk's logits [N, V / tensor], its own to overwrite; both passes are over the whole vocabulary."""

    def partition(self, targets_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-partition, log-prob of the target and entropy, each [N] and in nats. Two all-reduces.

        Args:
            targets_N: token ids, of the whole vocabulary.
        """
        ...

    def gradient(
        self,
        targets_N: Tensor,
        log_z_N: Tensor,
        entropy_N: Tensor,
        grad_log_probs_N: Tensor | None,
        grad_entropy_N: Tensor | None,
    ) -> Tensor:
        """Gradient of the logits before the temperature, in their dtype. Once, and last.

        Args:
            targets_N: see `partition`, which gave the next two.
            log_z_N: see there.
            entropy_N: see there.
            grad_log_probs_N: of the loss; likewise grad_entropy_N. None where the loss does not read them.
            grad_entropy_N: see there.
        """
        ...


def chunk_logits(logits_NV: Tensor, temperature: float, shard: VocabularyShard, *, keep: bool = False) -> ChunkLogits:
    """The passes over these logits: Triton's on a GPU, torch's elsewhere and of fp64.

    Args:
        logits_NV: this rank's columns, any floating dtype.
        temperature: divides the logits.
        shard: which columns these are.
        keep: whether the argument is left as it is.

    Raises:
        UserError: they are on a GPU and triton is not installed.
    """
    path = _kernels() if takes_kernels(logits_NV) else TorchLogits
    return path(logits_NV, temperature, shard, keep=keep)


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

    def __init__(self, logits_NV: Tensor, temperature: float, shard: VocabularyShard, *, keep: bool) -> None:
        self.dtype, self.temperature, self.shard = logits_NV.dtype, temperature, shard
        self.logits_NV = scaled_logits(logits_NV.to(wide(logits_NV.dtype), copy=keep), temperature, shard)
        self.taken_off_N: Tensor | None = None

    def partition(self, targets_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `ChunkLogits`."""
        self.taken_off_N, log_sum_N, log_probs_N, entropy_N = log_partition(self.logits_NV, targets_N, self.shard)
        return self.taken_off_N + log_sum_N, log_probs_N, entropy_N

    def gradient(
        self,
        targets_N: Tensor,
        log_z_N: Tensor,
        entropy_N: Tensor,
        grad_log_probs_N: Tensor | None,
        grad_entropy_N: Tensor | None,
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
            self.temperature,
            self.shard,
        ).to(self.dtype)
