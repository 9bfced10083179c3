"""torch.distributed's calls that Megatron makes differently on CUDA."""

import functools
from typing import Any

import torch
import torch.distributed as dist


def _as_list(sizes: Any) -> Any:
    return sizes.tolist() if isinstance(sizes, torch.Tensor) else sizes


def patch_collectives() -> None:
    """Lets `all_to_all_single` take split sizes that are tensors, and ranks gather and scatter unequal parts.

    Megatron's expert dispatcher turns the sizes into lists only where the tensor `is_cuda`, and c10d refuses a tensor.
    Experts under tensor parallelism get parts of as many rows as tokens came, which NCCL takes and gloo refuses.
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
    distributed.all_gather = _padded_all_gather(dist.all_gather)
    distributed.reduce_scatter = _padded_reduce_scatter(dist.reduce_scatter)


def _padded_all_gather(all_gather: Any) -> Any:
    @functools.wraps(all_gather)
    def with_unequal_parts(tensor_list: list[torch.Tensor], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        rows = _unequal_rows(tensor_list)
        if rows is None:
            return all_gather(tensor_list, tensor, *args, **kwargs)
        padded = [_padded(part, rows) for part in tensor_list]
        all_gather(padded, _padded(tensor, rows), *args, **kwargs)
        for part, full in zip(tensor_list, padded, strict=True):
            part.copy_(full[: len(part)])
        return None

    return with_unequal_parts


def _padded_reduce_scatter(reduce_scatter: Any) -> Any:
    @functools.wraps(reduce_scatter)
    def with_unequal_parts(output: torch.Tensor, input_list: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        rows = _unequal_rows(input_list)
        if rows is None:
            return reduce_scatter(output, input_list, *args, **kwargs)
        full = _padded(output, rows)
        reduce_scatter(full, [_padded(part, rows) for part in input_list], *args, **kwargs)
        output.copy_(full[: len(output)])
        return None

    return with_unequal_parts


def _unequal_rows(parts: list[torch.Tensor]) -> int | None:
    """Rows of the largest part; None where they are alike."""
    rows = {part.shape[:1] for part in parts}
    return None if len(rows) == 1 else max(len(part) for part in parts)


def _padded(part: torch.Tensor, rows: int) -> torch.Tensor:
    full = part.new_zeros(rows, *part.shape[1:])
    full[: len(part)] = part
    return full
