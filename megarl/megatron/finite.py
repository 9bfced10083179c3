"""Whether numbers are finite, on every rank."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megarl.platform.platform import current


@torch.no_grad()
def all_finite(tensors: Iterable[Tensor], world_size: int) -> bool:
    """Whether no number in any rank's tensors is NaN or infinite. Collective; memory is a number a tensor."""
    extremes = [torch.stack(tensor.detach().aminmax()).float() for tensor in tensors if tensor.numel() > 0]
    device = current().device
    # one wait for the device for all of them
    finite = torch.cat(extremes).isfinite().all() if extremes else torch.tensor(True, device=device)
    agreed = finite.to(device, torch.int32)
    if world_size > 1:
        dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
    return bool(agreed)


def gradient_buffers(wrapped: Sequence[Any]) -> Iterable[Tensor]:
    """The gradients of Megatron-core's data-parallel wrappers, which lie end to end."""
    for stage in wrapped:
        for buffer in (*stage.buffers, *stage.expert_parallel_buffers):
            yield buffer.grad_data
