"""Bytes of the tensors that autograd holds for the backward pass."""

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """While this context is entered, counts storages that are saved for backward, each once.

    Attributes:
        now: bytes that are held.
        peak: the most that were.
    """

    def __init__(self, without: Iterable[Tensor]) -> None:
        """Storages of the tensors `without`, such as parameters, are not counted."""
        super().__init__(self._pack, lambda held: held.tensor)
        self.now = self.peak = 0
        self._without = {tensor.untyped_storage().data_ptr() for tensor in without}
        self._holders: Counter[int] = Counter()

    def __enter__(self) -> "SavedBytes":
        super().__enter__()
        return self

    def _pack(self, tensor: Tensor) -> "_Held":
        return _Held(tensor, self)

    def add(self, tensor: Tensor, change: int) -> None:
        """One holder more or less of the tensor's storage."""
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place in self._without:
            return
        before = self._holders[place]
        self._holders[place] += change
        if not before or not self._holders[place]:
            self.now += change * storage.nbytes()
            self.peak = max(self.peak, self.now)


class _Held:
    """A saved tensor; it goes when autograd lets it go, and its storage is no other's until then."""

    def __init__(self, tensor: Tensor, count: SavedBytes) -> None:
        self.tensor, self.count = tensor, count
        count.add(tensor, 1)

    def __del__(self) -> None:
        self.count.add(self.tensor, -1)
