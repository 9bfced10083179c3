"""Megatron-core's checkpoint writer without its processes: a plan and a copy now, the files whenever it suits."""

import contextlib
import errno
import inspect
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megarl.platform.platform import current

_WRITERS = ("write_preloaded_data_multiproc", "write_preloaded_data_multithread")
"""Name of the method up to 0.16, and later."""


class HostMemory:
    """Copies on the host that are written over by the next save: fresh memory costs more than the copy itself."""

    def __init__(self) -> None:
        """Holds nothing before the first copy."""
        self._free: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor of any device, contiguous; pinned where there is a GPU."""
        free = self._free.get((tensor.shape, tensor.dtype))
        pinned = current().name == "cuda"
        own = free.pop() if free else torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        return own.copy_(tensor.detach(), non_blocking=pinned)

    def take_back(self, tensor: Tensor) -> None:
        """A copy that is not read any more."""
        self._free.setdefault((tensor.shape, tensor.dtype), []).append(tensor)


class PendingWrite:
    """This rank's part of a `dist_checkpointing.save` that is planned and not written."""

    def __init__(self, request: Any, memory: HostMemory | None) -> None:
        """Args: request: Megatron-core's. memory: for copies, where the tensors may change before `write`."""
        self._request, self._memory = request, memory
        # where there is nothing to write on this rank
        self._arguments = list(request.async_fn_args)
        if request.async_fn is not None:
            self._arguments[1] = request.preload_fn() if memory is None else _copied(self._arguments[1], memory)

    @property
    def files(self) -> list[Path]:
        """What `write` writes."""
        return [Path(bucket[0]) for bucket in self._arguments[1]] if self._request.async_fn is not None else []

    def write(self) -> None:
        """Writes and syncs this rank's files. Not collective, and safe in a thread.

        Raises:
            OSError: a file could not be written.
        """
        if self._request.async_fn is None:
            return
        self._request.async_fn(*self._arguments, **self._request.async_fn_kwargs)
        results: queue.Queue[Any] = self._arguments[2]
        outcome = results.queue[0]
        if self._memory is not None:
            for _, _, (_, tensors) in self._arguments[1]:
                for _, tensor in tensors:
                    self._memory.take_back(tensor)
        # the tensors are not needed any more, the number of files is
        self._arguments[1] = [(path, key, ([], [])) for path, key, _ in self._arguments[1]]
        if isinstance(outcome, Exception):
            raise _of_the_disk(outcome) or outcome from outcome

    def finish(self) -> None:
        """Writes what tells a reader which tensor lies where. Collective, once all ranks have written."""
        for finalize in self._request.finalize_fns:
            finalize()


def plan_write(state: dict[str, Any], folder: Path, memory: HostMemory | None = None) -> PendingWrite:
    """Plans a `dist_checkpointing.save` of the sharded state into the folder. Collective.

    Megatron-core's writer reports through a queue of a `multiprocessing` manager, a spawned process that imports torch:
    3 s for the first save of a process. And up to 0.16 it forks a process for each file: one more that a kill can leave
    behind, with whatever its parent had open and locked. Here it does neither.

    Args:
        state: Megatron-core's sharded state dict.
        folder: an empty folder that every rank sees; the part of the state that is no tensor is written at once.
        memory: for a copy of this rank's tensors on the host, so that training may go on before they are written.

    Raises:
        OSError: the part that is no tensor could not be written.
    """
    from megatron.core import dist_checkpointing

    # 0.19 takes NVIDIA's resiliency extension by default, which is no dependency of ours
    takes = inspect.signature(dist_checkpointing.save).parameters
    options = {"async_strategy": "mcore"} if "async_strategy" in takes else {}
    with _here():
        try:
            request = dist_checkpointing.save(state, str(folder), async_sharded_save=True, **options)
        except RuntimeError as error:
            raise _of_the_disk(error) or error from error
    return PendingWrite(request, memory)


@contextlib.contextmanager
def _here() -> Iterator[None]:
    """Plans that are made inside write in the process that calls them, and report through a queue of their own."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    writer = filesystem_async.FileSystemWriterAsync
    name = next(name for name in _WRITERS if name in writer.__dict__)
    method, results = writer.__dict__[name], filesystem_async._results_queue
    filesystem_async._results_queue = queue.Queue()
    setattr(writer, name, staticmethod(_write_here))
    try:
        yield
    finally:
        filesystem_async._results_queue = results
        setattr(writer, name, method)


def _of_the_disk(error: BaseException) -> OSError | None:
    """The failed write behind an exception, if it is one: torch's archive complains of its own place in the file."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return cause
        cause = cause.__cause__ or cause.__context__
    text = str(error).splitlines()[0] if str(error) else ""
    written_in_c = any(word in text for word in ("inline_container", "iostream", "PytorchStreamWriter"))
    return OSError(errno.EIO, f"torch could not write an archive: {text}") if written_in_c else None


def _copied(buckets: list[Any], memory: HostMemory) -> list[Any]:
    """The buckets with copies of their tensors, which are whole when this returns."""
    copies = [
        (path, key, (objects, [(item, memory.copy(tensor)) for item, tensor in tensors]))
        for path, key, (objects, tensors) in buckets
    ]
    current().synchronize()
    return copies


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
