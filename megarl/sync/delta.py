"""On top of a transport: only what changed since the last sync travels, and the workers put the rest back.

Nothing is rounded: values are compared and sent as bits, so that -0, NaN and its payload arrive. Trainer and workers
each keep a copy of the whole model on the host.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor

from megarl.sync.bucket import Bucket, TensorSpec
from megarl.sync.transport import Reader, Sender

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_AT, _TO = "/at", "/to"
"""Behind a tensor's name: where it changed, and to what. No parameter's name has a slash."""


class DeltaSender:
    """Implements `megarl.sync.transport.Sender`.

    A tensor travels as the places that changed, int32 (int64 from 2^31 values on), with their new values, while that is
    smaller than the tensor: below a third of the values in 16 bits, below half in 32. Else it travels whole.
    """

    def __init__(self, inner: Sender) -> None:
        """Args: inner: carries what changed."""
        self.slots = inner.slots
        self._inner = inner
        self._held: dict[str, Tensor] = {}
        self._numbers = count(1)
        self._last: int | None = None

    @property
    def bytes_written(self) -> int:
        """See `Sender`."""
        return self._inner.bytes_written

    def describe(self) -> dict[str, Any]:
        """See `Sender`."""
        return {**self._inner.describe(), "delta": True}

    def write(self, slot: int, bucket: Bucket, tensors: Iterable[Tensor]) -> dict[str, Any]:
        """See `Sender`."""
        specs: list[TensorSpec] = []
        parts: list[Tensor] = []
        for spec, tensor in zip(bucket.specs, tensors, strict=True):
            for name, part in self._changed(spec.name, tensor.detach().cpu().contiguous()):
                specs.append(TensorSpec(name, tuple(part.shape), part.dtype))
                parts.append(part)
        where = self._inner.write(slot, Bucket.of(specs), parts)
        last, self._last = self._last, next(self._numbers)
        return {
            "inner": where,
            "names": [spec.name for spec in bucket.specs],
            "after": last,
            "number": self._last,
        }

    def reset(self) -> None:
        """See `Sender`: the next update is whole."""
        self._held, self._last = {}, None
        self._inner.reset()

    def close(self) -> None:
        """See `Sender`."""
        self._held = {}
        self._inner.close()

    def _changed(self, name: str, new: Tensor) -> list[tuple[str, Tensor]]:
        held = self._held.get(name)
        if held is None:
            self._held[name] = new.clone()
            return [(name, self._held[name])]
        bits, now = _bits(held), _bits(new)
        places = (bits != now).nonzero().flatten()
        if places.dtype != torch.int32 and len(bits) < 2**31:
            places = places.to(torch.int32)
        values = now[places.long()]
        bits.copy_(now)
        if places.nbytes + values.nbytes >= new.nbytes:
            return [(name, held)]
        return [(name + _AT, places), (name + _TO, values)] if len(places) else []


class DeltaReader:
    """Implements `megarl.sync.transport.Reader`."""

    def __init__(self, inner: Reader) -> None:
        """Args: inner: brings what changed."""
        self._inner = inner
        self._held: dict[str, Tensor] = {}
        self._last: int | None = None

    @contextmanager
    def read(self, where: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
        """See `Reader`: the whole tensors, as they now are, on the host.

        Raises:
            RuntimeError: the changes are to another state than the one that is held.
        """
        if where["after"] is not None and where["after"] != self._last:
            raise RuntimeError(f"the bucket holds changes after bucket {where['after']}, the last here is {self._last}")
        # of no number until all of it is in place
        self._last = None
        with self._inner.read(where["inner"]) as parts:
            for name in parts:
                self._take(name, parts)
        self._last = where["number"]
        yield {name: self._held[name] for name in where["names"]}

    def _take(self, name: str, parts: Mapping[str, Tensor]) -> None:
        if name.endswith(_AT):
            whole = name.removesuffix(_AT)
            _bits(self._held[whole])[parts[name].cpu().long()] = parts[whole + _TO].cpu()
        elif not name.endswith(_TO) and name in self._held:
            self._held[name].copy_(parts[name])
        elif not name.endswith(_TO):
            self._held[name] = parts[name].cpu().clone()


def _bits(tensor: Tensor) -> Tensor:
    """The values as integers, flat, in the same memory."""
    return tensor.view(-1).view(_BITS[tensor.dtype.itemsize])
