"""Transport through a folder that trainer and workers both see: one safetensors file a bucket."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from megarl.sync.bucket import Bucket


class DiskSender:
    """Implements `megarl.sync.transport.Sender`. What else lies in the folder is left alone."""

    def __init__(self, folder: Path, slots: int = 2) -> None:
        """Args: folder: made where there is none, and then removed in the end. slots: buckets that exist at once."""
        self.slots, self.bytes_written = slots, 0
        self._folder, self._is_own = folder, not folder.exists()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # of an earlier life of this run
        self._remove_buckets()

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
        self._remove_buckets()
        if self._is_own:
            # an engine may have left something there
            with suppress(OSError):
                self._folder.rmdir()

    def _remove_buckets(self) -> None:
        for path in self._folder.glob("bucket-*.*"):
            if path.suffix in (".safetensors", ".new"):
                path.unlink(missing_ok=True)


class DiskReader:
    """Implements `megarl.sync.transport.Reader`."""

    @contextmanager
    def read(self, where: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
        """See `Reader`. The bytes are the reader's own: they may be kept."""
        yield load_file(where["path"])
