"""What carries buckets from the trainer to the engine's workers."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from megarl.sync.bucket import Bucket


class Sender(Protocol):
    """The trainer's side, on the main rank. It has as many slots as buckets may exist at once."""

    slots: int

    @property
    def bytes_written(self) -> int:
        """Of all buckets until now, as they travel."""

    def describe(self) -> dict[str, Any]:
        """For the workers, as JSON: which transport, and what they need to open it."""

    def write(self, slot: int, bucket: Bucket, tensors: Iterable[Tensor]) -> dict[str, Any]:
        """Puts the bucket's tensors, in its order, where the workers reach them, and tells them, as JSON, where.

        The slot must be free: the workers are done with what was written to it before.
        """

    def reset(self) -> None:
        """Ends what waits for a worker, and trusts in nothing that the workers hold: one of them was lost, or is new.

        `describe` and `write` then begin anew.
        """

    def close(self) -> None:
        """Removes what it made."""


class Reader(Protocol):
    """The workers' side."""

    def read(self, where: Mapping[str, Any]) -> AbstractContextManager[dict[str, Tensor]]:
        """The bucket's tensors by name. They are gone, or others, after the block."""
