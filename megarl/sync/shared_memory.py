"""Transport for one machine: anonymous memory of the trainer's that the workers map.

The memory has no name in any folder; it goes with the trainer, however that ends.
"""

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from megarl.sync.bucket import Bucket, tensors_in


class SharedMemorySender:
    """Implements `megarl.sync.transport.Sender`."""

    def __init__(self, slots: int = 2) -> None:
        self.slots = slots
        self._files = [os.memfd_create(f"megarl-bucket-{slot}") for slot in range(slots)]
        self._maps: list[mmap.mmap | None] = [None] * slots

    def describe(self) -> dict[str, Any]:
        """See `Sender`."""
        return {"transport": "shared_memory"}

    def write(self, slot: int, bucket: Bucket, tensors: Iterable[Tensor]) -> dict[str, Any]:
        """See `Sender`."""
        size = max(bucket.nbytes, mmap.PAGESIZE)
        held = self._maps[slot]
        if held is None or len(held) < size:
            os.ftruncate(self._files[slot], size)
            held = self._maps[slot] = mmap.mmap(self._files[slot], size)
        buffer = torch.frombuffer(held, dtype=torch.uint8)
        for index, tensor in enumerate(tensors):
            bucket.view(buffer, index).copy_(tensor)
        return {"path": f"/proc/{os.getpid()}/fd/{self._files[slot]}", "nbytes": size, "contents": bucket.as_json()}

    def close(self) -> None:
        """See `Sender`."""
        self._maps = []
        for file in self._files:
            os.close(file)
        self._files = []


class SharedMemoryReader:
    """Implements `megarl.sync.transport.Reader`."""

    @contextmanager
    def read(self, where: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
        """See `Reader`.

        Raises:
            BufferError: on leaving, where something still holds a part of the bytes, which the next bucket overwrites.
        """
        file = os.open(where["path"], os.O_RDONLY)
        try:
            # private, so that a loader which writes into what it was given cannot reach the trainer's copy
            mapped = mmap.mmap(file, where["nbytes"], flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(file)
        tensors = tensors_in(torch.frombuffer(mapped, dtype=torch.uint8), where["contents"])
        yield tensors
        tensors.clear()
        mapped.close()
