"""Tensors in buckets: what travels together, and where in a bucket each tensor lies."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

_LAYER = re.compile(r".*\.layers\.\d+\.")
_ALIGNMENT = 64
"""Bytes; tensors of any dtype can be viewed from such offsets, on a CPU and on a GPU."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's name, shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    def view(self, buffer: Tensor, begin: int) -> Tensor:
        """The bytes of a uint8 buffer from `begin` on, as a tensor of this shape and dtype."""
        return buffer[begin : begin + self.nbytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class Bucket:
    """Tensors that travel together.

    Attributes:
        specs: the tensors, in the order in which the trainer gives them.
        offsets: where each begins, in bytes.
        nbytes: size of the whole.
    """

    specs: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    nbytes: int

    @staticmethod
    def of(specs: Sequence[TensorSpec]) -> "Bucket":
        """A bucket of these tensors."""
        offsets, end = [], 0
        for spec in specs:
            offsets.append(end)
            end += -(-spec.nbytes // _ALIGNMENT) * _ALIGNMENT
        return Bucket(tuple(specs), tuple(offsets), end)

    def view(self, buffer: Tensor, index: int) -> Tensor:
        """The place of tensor `index` in uint8 bytes that hold the bucket, as a tensor of its shape and dtype."""
        return self.specs[index].view(buffer, self.offsets[index])

    def as_json(self) -> list[list[Any]]:
        """Names, shapes, dtypes and offsets, for the worker."""
        return [
            [spec.name, list(spec.shape), str(spec.dtype).removeprefix("torch."), offset]
            for spec, offset in zip(self.specs, self.offsets, strict=True)
        ]


def plan_buckets(specs: Sequence[TensorSpec], limit: int) -> list[Bucket]:
    """Buckets of at most `limit` bytes, in order. A layer is never cut, so one that is larger is a bucket of its own.

    An engine fuses and repacks a layer's tensors once it has them all; whole layers leave it nothing to keep.
    """
    buckets: list[Bucket] = []
    held: list[TensorSpec] = []
    for layer in _by_layer(specs):
        if held and Bucket.of([*held, *layer]).nbytes > limit:
            buckets.append(Bucket.of(held))
            held = []
        held += layer
    return [*buckets, Bucket.of(held)] if held else buckets


def _by_layer(specs: Sequence[TensorSpec]) -> Iterator[list[TensorSpec]]:
    held: list[TensorSpec] = []
    key: str | None = None
    for spec in specs:
        match = _LAYER.match(spec.name)
        # a tensor outside the layers, such as the embedding, is a group of its own
        own = match[0] if match else spec.name
        if held and own != key:
            yield held
            held = []
        held.append(spec)
        key = own
    if held:
        yield held


def tensors_in(buffer: Tensor, contents: Sequence[Sequence[Any]]) -> dict[str, Tensor]:
    """The worker's side of `Bucket.as_json`: views into uint8 bytes, by name."""
    return {
        name: TensorSpec(name, tuple(shape), getattr(torch, dtype)).view(buffer, begin)
        for name, shape, dtype, begin in contents
    }
