"""Transport for one machine: anonymous memory of the trainer's that the workers map.

The memory has no name in any folder; it goes with the trainer, however that ends.
"""

import gc
import mmap
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megarl.sync.bucket import Bucket, tensors_in

_OWN_REFERENCES = 2
"""To an array that only its one variable holds: that, and the counting call's own."""


class SharedMemorySender:
    """Implements `megarl.sync.transport.Sender`."""

    def __init__(self, slots: int = 2) -> None:
        self.slots, self.bytes_written = slots, 0
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
        self.bytes_written += bucket.nbytes
        return {
            "path": f"/proc/{os.getpid()}/fd/{self._files[slot]}",
            "nbytes": len(held),
            "contents": bucket.as_json(),
        }

    def reset(self) -> None:
        """See `Sender`: nothing waits for anybody."""

    def close(self) -> None:
        """See `Sender`."""
        self._maps = []
        for file in self._files:
            os.close(file)
        self._files = []


class SharedMemoryReader:
    """Implements `megarl.sync.transport.Reader`.

    A mapping is kept as long as the sender's memory is the same: mapping a page anew costs as much as copying it.
    """

    def __init__(self) -> None:
        self._mapped: dict[str, tuple[tuple[int, ...], mmap.mmap]] = {}

    @contextmanager
    def read(self, where: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
        """See `Reader`.

        Raises:
            BufferError: on leaving, where something still holds a part of the bytes, which the next bucket overwrites.
        """
        bytes_held = np.frombuffer(self._map(where["path"], where["nbytes"]), np.uint8)
        with warnings.catch_warnings():
            # that they are read-only is wanted: a loader that wrote into what it was given would write to the trainer's
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            tensors = tensors_in(torch.from_numpy(bytes_held), where["contents"])
        yield tensors
        tensors.clear()
        if sys.getrefcount(bytes_held) > _OWN_REFERENCES:
            gc.collect()
            if sys.getrefcount(bytes_held) > _OWN_REFERENCES:
                raise BufferError("a tensor of the bucket is still held, whose bytes the next one overwrites")

    def _map(self, path: str, nbytes: int) -> mmap.mmap:
        file = os.open(path, os.O_RDONLY)
        try:
            status = os.fstat(file)
            identity = (status.st_dev, status.st_ino, nbytes)
            held = self._mapped.get(path)
            if held is None or held[0] != identity:
                held = self._mapped[path] = (identity, mmap.mmap(file, nbytes, prot=mmap.PROT_READ))
        finally:
            os.close(file)
        return held[1]
