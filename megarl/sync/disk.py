"""Transport through a folder that trainer and workers both see: one safetensors file a bucket."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from megarl.sync.bucket import Bucket


class DiskSender:
    """Implements `megarl.sync.transport.Sender`."""

    def __init__(self, folder: Path, slots: int = 2) -> None:
        self.slots, self.bytes_written = slots, 0
        self._folder = folder
        # of an earlier life of this run
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)

    def describe(self) -> dict[str, Any]:
        """See `Sender`."""
        return {"transport": "disk"}

    def write(self, slot: int, bucket: Bucket, tensors: Iterable[Tensor]) -> dict[str, Any]:
        """See `Sender`."""
        named = {spec.name: tensor.contiguous() for spec, tensor in zip(bucket.specs, tensors, strict=True)}
        path = self._folder / f"bucket-{slot}.safetensors"
        beside = path.with_suffix(".new")
        save_file(named, beside)
        with beside.open("rb") as file:
            # another machine may read it next
            os.fsync(file.fileno())
        beside.rename(path)
        self.bytes_written += bucket.nbytes
        return {"path": str(path.resolve())}

    def reset(self) -> None:
        """See `Sender`: nothing waits for anybody."""

    def close(self) -> None:
        """See `Sender`."""
        shutil.rmtree(self._folder, ignore_errors=True)


class DiskReader:
    """Implements `megarl.sync.transport.Reader`."""

    @contextmanager
    def read(self, where: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
        """See `Reader`. The bytes are the reader's own: they may be kept."""
        yield load_file(where["path"])
