"""Ways in which weights go wrong between the trainer and the engine."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from megarl.megatron.policy import Policy
from megarl.rollout.server import Server
from megarl.sync.bucket import Bucket
from megarl.sync.transport import Sender

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""From a bucket's tensors to those that are sent in their places."""


class FaultySender:
    """A real transport that sends something else than it was given, once digests are counted."""

    def __init__(self, sender: Sender, change: Change = dict, left_out: frozenset[str] = frozenset()) -> None:
        self.slots = sender.slots
        self._sender, self._change, self._left_out = sender, change, left_out

    def describe(self) -> dict[str, Any]:
        return self._sender.describe()

    def write(self, slot: int, bucket: Bucket, tensors: Iterable[Tensor]) -> dict[str, Any]:
        named = {spec.name: tensor for spec, tensor in zip(bucket.specs, tensors, strict=True)}
        changed = self._change(named)
        where = self._sender.write(slot, bucket, [changed[spec.name] for spec in bucket.specs])
        if not self._left_out:
            return where
        return {**where, "contents": [entry for entry in where["contents"] if entry[0] not in self._left_out]}

    @property
    def bytes_written(self) -> int:
        return self._sender.bytes_written

    def reset(self) -> None:
        self._sender.reset()

    def close(self) -> None:
        self._sender.close()


def swapped(one: str, other: str) -> Change:
    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors | {one: tensors[other], other: tensors[one]} if one in tensors else tensors

    return change


def altered(name: str, alter: Callable[[Tensor], Tensor]) -> Change:
    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors | {name: alter(tensors[name])} if name in tensors else tensors

    return change


class MisnamedPolicy:
    """A policy whose export has two tensors under each other's names: both digests agree, the network does not."""

    def __init__(self, policy: Policy, one: str, other: str) -> None:
        self._policy, self._names = policy, {one: other, other: one}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def export(self) -> Iterator[tuple[str, Tensor]]:
        tensors = dict(self._policy.export())
        for name in tensors:
            yield name, tensors[self._names.get(name, name)]


class ServerThatKeepsItsCache(Server):
    """Updates weights without dropping what was cached with the old ones."""

    def order(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        if path == "/reset_prefix_cache":
            return None
        return super().order("/pause?mode=abort&clear_cache=false" if path.startswith("/pause") else path, body)
