"""What the workers received against what was sent, and the likeliest cause where the two differ."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from megarl.rollout.engine import WeightsError
from megarl.sync.bucket import TensorSpec
from megarl.sync.digest import digest

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SHARDS = (2, 3, 4, 6, 8, 16)
"""Parts that a tensor is tried in."""


class MismatchError(WeightsError):
    """A tensor that a worker did not receive as it was sent."""

    def __init__(self, name: str, sent: str, received: str | None) -> None:
        """Args: name: the tensor's. sent: its digest here. received: its digest at the worker, None where none came."""
        super().__init__(name, sent, received)
        self.name, self.sent, self.received = name, sent, received

    def sentence(self, cause: str) -> str:
        """What to tell the user."""
        received = self.received or "none"
        return f"{self.name} did not arrive as it was sent: digest {self.sent} here, {received} at the engine; {cause}"


def first_mismatch(
    specs: Sequence[TensorSpec], sent: Mapping[str, str], received: Mapping[str, str]
) -> MismatchError | None:
    """None where every digest that was sent was received; else the first tensor that was not.

    Args:
        specs: every tensor of the plan, in its order.
        sent: digests over the trainer's own tensors, by name.
        received: digests over the bytes that a worker was given, by name.
    """
    for spec in specs:
        own = sent.get(spec.name)
        if own is not None and received.get(spec.name) != own:
            return MismatchError(spec.name, own, received.get(spec.name))
    return None


def likeliest_cause(mismatch: MismatchError, tensors: Iterable[tuple[str, Tensor]], before: Mapping[str, str]) -> str:
    """Looks for what the worker was given instead, among what the trainer has and what could become of it.

    Args:
        mismatch: the tensor.
        tensors: all of the trainer's, once more; they are read to the end, since every rank must bring its part.
        before: digests of the versions before, by name.
    """
    given, found = mismatch.received, None
    for name, tensor in tensors:
        if given is None or found is not None:
            continue
        if name == mismatch.name:
            found = next((words for words, variant in _variants(tensor) if digest(variant) == given), None)
        elif digest(tensor) == given:
            found = f"the engine was given the bytes of {name} under this name"
    if given is None:
        return "it was not sent, or under another name"
    if given == before.get(mismatch.name):
        return "these are its bytes of an earlier version: a stale tensor"
    return found or "its bytes are those of no other tensor, no part, no transpose and no dtype of it"


def _variants(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What could have arrived in the tensor's place, and in words why."""
    yield "its bytes were never written: all are zero", torch.zeros_like(tensor)
    if tensor.dim() == 2:
        yield "it was transposed on the way", tensor.T
        yield "it was transposed on the way", tensor.T.reshape(tensor.shape)
    for dtype in _DTYPES:
        if dtype != tensor.dtype:
            yield f"it was sent as {dtype} where the trainer has {tensor.dtype}", tensor.to(dtype)
            yield f"it was rounded to {dtype} on the way", tensor.to(dtype).to(tensor.dtype)
    for dimension, size in enumerate(tensor.shape):
        for parts in _SHARDS:
            for part, shard in enumerate(tensor.chunk(parts, dimension) if size % parts == 0 else ()):
                yield f"part {part} of {parts} along dimension {dimension} came, a shard and not the whole", shard
