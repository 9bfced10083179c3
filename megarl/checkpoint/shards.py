"""Tensors into a folder's safetensors files, as they come: one shard is in memory at a time."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from megarl.megatron.hf_folder import INDEX, SINGLE
from megarl.observe.files import write_atomic
from megarl.platform.disk_errors import of_the_disk

SHARD_BYTES = 5 * 10**9
"""Hugging Face's usual size of a shard."""


class ShardWriter:
    """Writes model.safetensors, or where there is more than a shard, numbered files and their index.

    A shard is written when the next tensor would overfill it, so the peak of host memory is one shard and one tensor;
    a tensor above the size is a shard of its own.
    """

    def __init__(self, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
        """Args: folder: exists, without weights. shard_bytes: largest shard, its header not counted."""
        self._folder, self._shard_bytes = folder, shard_bytes
        self._pending: dict[str, Tensor] = {}
        self._pending_bytes = self._total_bytes = 0
        self._written: list[list[str]] = []
        self.dtype: torch.dtype | None = None
        """Of the first tensor, which in all families is the embedding."""

    def add(self, name: str, tensor: Tensor) -> None:
        """Takes a copy of the tensor, which may live on any device and be a view."""
        if self._pending and self._pending_bytes + tensor.nbytes > self._shard_bytes:
            self._flush()
        self.dtype = self.dtype or tensor.dtype
        # unshared and contiguous, which safetensors asks for
        own = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._pending[name] = own.copy_(tensor.detach())
        self._pending_bytes += tensor.nbytes
        self._total_bytes += tensor.nbytes

    def finish(self) -> None:
        """Writes what is left, gives the files their names, and writes the index."""
        self._flush()
        count = len(self._written)
        if count == 1:
            self._part(1).rename(self._folder / SINGLE)
            return
        weight_map: dict[str, str] = {}
        for number, names in enumerate(self._written, start=1):
            file = f"model-{number:05d}-of-{count:05d}.safetensors"
            self._part(number).rename(self._folder / file)
            weight_map |= dict.fromkeys(names, file)
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}
        write_atomic(self._folder / INDEX, json.dumps(index, indent=2, sort_keys=True).encode())

    def _flush(self) -> None:
        self._written.append(list(self._pending))
        part = self._part(len(self._written))
        write_tensors(self._pending, part)
        self._pending, self._pending_bytes = {}, 0

    def _part(self, number: int) -> Path:
        return self._folder / f"{number}.part"


def write_tensors(tensors: dict[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes one safetensors file and syncs it.

    Args:
        tensors: by name.
        path: of the file.
        metadata: texts in its header, beside its format.

    Raises:
        OSError: it could not be written.
    """
    # made first: safetensors would make it for the owner alone, unlike every other file of a run
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata={"format": "pt", **(metadata or {})})
    except SafetensorError as error:
        raise of_the_disk(error) or error from error
    path.chmod(mode)
    with path.open("rb") as file:
        os.fsync(file.fileno())
