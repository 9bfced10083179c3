"""Megatron-core's checkpoint writer without its processes: a plan and a copy now, the files whenever it suits."""

import contextlib
import inspect
import queue
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megarl.platform.disk_errors import of_the_disk
from megarl.platform.pending_write import HostMemory, PendingWrite

_WRITERS = ("write_preloaded_data_multiproc", "write_preloaded_data_multithread")
"""Name of the method up to 0.16, and later."""


def plan_write(
    state: dict[str, Any], folder: Path, memory: HostMemory | None = None, changing: Collection[Tensor] = ()
) -> PendingWrite:
    """Plans a `dist_checkpointing.save` of the sharded state into the folder. Collective.

    Megatron-core's writer reports through a queue of a `multiprocessing` manager, a spawned process that imports torch:
    3 s for the first save of a process. And up to 0.16 it forks a process for each file: one more that a kill can leave
    behind, with whatever its parent had open and locked. Here it does neither.

    Args:
        state: Megatron-core's sharded state dict.
        folder: an empty folder that every rank sees; the part of the state that is no tensor is written at once.
        memory: for a copy of this rank's tensors on the host, so that they may change before they are written.
        changing: tensors that may change before `PendingWrite.copy` is called: they are copied here.

    Raises:
        OSError: the part that is no tensor could not be written.
    """
    from megatron.core import dist_checkpointing

    # 0.19 takes NVIDIA's resiliency extension by default, which is no dependency of ours
    takes = inspect.signature(dist_checkpointing.save).parameters
    options = {"async_strategy": "mcore"} if "async_strategy" in takes else {}
    with _here(keeps_tensors=memory is not None) as tensors:
        try:
            request = dist_checkpointing.save(state, str(folder), async_sharded_save=True, **options)
        except RuntimeError as error:
            raise of_the_disk(error) or error from error
    return PendingWrite(request, memory, tensors, changing)


@contextlib.contextmanager
def _here(*, keeps_tensors: bool) -> Iterator[dict[Any, Tensor]]:
    """Plans that are made inside write in the process that calls them, and report through a queue of their own.

    Args:
        keeps_tensors: whether the plan gets empty ones in the place of those on the host. Of views, such as the halves
            of a gated layer's weight, Megatron-core would make copies, each in fresh memory, before it returns.

    Returns:
        By index, those in whose place the plan has empty ones.
    """
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.dist_checkpointing.strategies import torch as strategies

    tensors: dict[Any, Tensor] = {}
    planner = strategies.MCoreSavePlanner

    class Planner(planner):  # type: ignore[misc, valid-type]
        def resolve_data(self, item: Any) -> Any:
            data = super().resolve_data(item)
            if not isinstance(data, Tensor) or not data.is_cpu:
                return data
            tensors[item.index] = data
            return torch.empty_like(data, device="meta")

    writer = filesystem_async.FileSystemWriterAsync
    name = next(name for name in _WRITERS if name in writer.__dict__)
    method, results = writer.__dict__[name], filesystem_async._results_queue
    filesystem_async._results_queue = queue.Queue()
    setattr(writer, name, staticmethod(_write_here))
    strategies.MCoreSavePlanner = Planner if keeps_tensors else planner
    try:
        yield tensors
    finally:
        strategies.MCoreSavePlanner = planner
        filesystem_async._results_queue = results
        setattr(writer, name, method)


def _write_here(
    transform_list: list[Any], use_msc: bool, rank: int, write_buckets: list[Any], results: "queue.Queue[Any]"
) -> None:
    """Writes each bucket in turn and reports as Megatron-core's does: index to results, or the first exception."""
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    written: dict[int, Any] = {}
    for index, bucket in enumerate(write_buckets):
        reported: queue.Queue[Any] = queue.Queue()
        # the writer counts itself off this queue when it is done
        pending: queue.Queue[int] = queue.Queue()
        pending.put(index)
        more = {"use_msc": True} if use_msc else {}
        FileSystemWriterAsync.write_preloaded_data(transform_list, index, bucket, reported, pending, True, **more)
        _, outcome = reported.get_nowait()
        if isinstance(outcome, Exception):
            results.put(outcome)
            return
        written[index] = outcome
    results.put(written)
