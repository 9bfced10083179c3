"""Bytes that collectives and sends of this process move, counted as rings."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class SentBytes(TorchDispatchMode):
    """While this context is entered, adds up what torch.distributed's tensor operations make this rank send.

    Attributes:
        total: bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.total += _sent(func.__name__.removesuffix(".default"), args)
        return func(*args, **(kwargs or {}))


def _sent(name: str, args: Any) -> int:
    """Of n bytes over r ranks a gather and a scatter send n (r - 1) / r each; an all-reduce is one of each.

    Raises:
        KeyError: an operation that no case here runs.
    """
    if name in ("recv_", "broadcast_", "barrier"):
        return 0
    if name == "send":
        return sum(tensor.nbytes for tensor in args[0])
    # the whole is the first argument, but the second of a scatter; operations on lists of tensors have them in both
    whole, times = {
        "allreduce_": (args[0], 2),
        "allreduce_coalesced_": (args[0], 2),
        "allgather_": (args[0], 1),
        "_allgather_base_": (args[0], 1),
        "allgather_into_tensor_coalesced_": (args[0], 1),
        "_reduce_scatter_base_": (args[1], 1),
        "reduce_scatter_tensor_coalesced_": (args[1], 1),
    }[name]
    group = next(dist.ProcessGroup.unbox(arg) for arg in args if isinstance(arg, torch.ScriptObject))
    return times * _bytes(whole) * (group.size() - 1) // group.size()


def _bytes(value: Any) -> int:
    return value.nbytes if isinstance(value, Tensor) else sum(map(_bytes, value))
