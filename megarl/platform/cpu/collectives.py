"""torch.distributed's calls that Megatron makes differently on CUDA."""

import functools
from typing import Any

import torch
import torch.distributed as dist


def _as_list(sizes: Any) -> Any:
    return sizes.tolist() if isinstance(sizes, torch.Tensor) else sizes


def patch_collectives() -> None:
    """Lets `all_to_all_single` take split sizes that are tensors.

    Megatron's expert dispatcher turns them into lists only where the tensor `is_cuda`, and c10d refuses a tensor.
    """
    all_to_all_single = dist.all_to_all_single

    @functools.wraps(all_to_all_single)
    def with_tensor_splits(
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        return all_to_all_single(
            output, input, _as_list(output_split_sizes), _as_list(input_split_sizes), *args, **kwargs
        )

    distributed: Any = dist
    distributed.all_to_all_single = with_tensor_splits
