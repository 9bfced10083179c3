"""What Megatron-core has planned to write, with copies of the tensors on the host, until it is written."""

import queue
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megarl.platform.disk_errors import of_the_disk
from megarl.platform.platform import current


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

    def __init__(
        self, request: Any, memory: HostMemory | None, tensors: Mapping[Any, Tensor], changing: Collection[Tensor]
    ) -> None:
        """Args: request: Megatron-core's. tensors: for the empty ones in it, by index. The rest: see `plan_write`."""
        self._request, self._memory = request, memory
        self._arguments = list(request.async_fn_args)
        # there may be nothing to write on this rank
        self._copied = memory is None or request.async_fn is None
        if request.async_fn is not None and memory is None:
            self._arguments[1] = request.preload_fn()
        elif request.async_fn is not None:
            places = {tensor.untyped_storage().data_ptr() for tensor in changing}
            self._replace(lambda item, tensor: _unless_in(places, tensors.get(item.index, tensor)))
        self._planned = current().mark()
        self._index: Callable[[], None] | None = None

    @property
    def files(self) -> list[Path]:
        """What `write` writes."""
        return [Path(bucket[0]) for bucket in self._arguments[1]] if self._request.async_fn is not None else []

    def copy(self) -> None:
        """Copies this rank's tensors as they were planned; once this returns they may change.

        Not collective, safe in a thread, and nothing where there is no memory for copies or they are made.
        """
        if self._copied or (memory := self._memory) is None:
            return
        planned = self._arguments[1]
        with current().beside(self._planned):
            self._replace(lambda _, tensor: memory.copy(tensor))
        # until here: what the device still copies from must not be given out to what it is asked for meanwhile
        del planned
        self._copied = True

    def write(self) -> None:
        """Copies, writes and syncs this rank's files. Not collective, and safe in a thread.

        Raises:
            OSError: a file could not be written.
        """
        if self._request.async_fn is None:
            return
        self.copy()
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
            raise of_the_disk(outcome) or outcome from outcome

    def finish(self) -> None:
        """Gathers what tells a reader which tensor lies where. Collective, once all ranks have written."""
        from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync as Writer

        def deferred(*arguments: Any) -> None:
            self._index = partial(written, *arguments)

        written = Writer.finish
        Writer.finish = deferred
        try:
            for finalize in self._request.finalize_fns:
                finalize()
        finally:
            Writer.finish = written

    def write_index(self) -> None:
        """Writes and syncs what was gathered, where the main rank holds it. Not collective, and safe in a thread.

        Raises:
            OSError: it could not be written.
        """
        if self._index is not None:
            self._index()

    def _replace(self, replacement: Callable[[Any, Tensor], Tensor]) -> None:
        """Puts another tensor in the place of each. Args: replacement: of an item of the plan and its tensor."""
        self._arguments[1] = [
            (path, key, (objects, [(item, replacement(item, tensor)) for item, tensor in tensors]))
            for path, key, (objects, tensors) in self._arguments[1]
        ]


def _unless_in(places: Collection[int], tensor: Tensor) -> Tensor:
    """The tensor, or a copy where its memory is in one of these places."""
    return tensor.detach().clone() if tensor.untyped_storage().data_ptr() in places else tensor.detach()
