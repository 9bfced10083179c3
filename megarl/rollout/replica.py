"""What a fleet asks of one server; each engine implements it once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from megarl.rollout.types import Completion, Request, SamplingParams


class Replica(Protocol):
    """One server. Its methods, but for `start`, may be called from several threads.

    All raise `ServerUnreachableError` where no answer comes, and `EngineError` where the server refuses.
    """

    release: str
    """Of the server's software; empty before it was ready."""

    @property
    def url(self) -> str:
        """Where it is, for whoever reads of it."""

    def start(self) -> None:
        """Starts the server, or does nothing where it is not the run's own."""

    def wait_until_ready(self, give_up: Callable[[], bool]) -> None:
        """Returns once the server answers and is one that the recipe can use.

        Args:
            give_up: whether to wait no longer, which is an `EngineError` then.
        """

    def generate(self, request: Request, sampling: SamplingParams) -> Completion:
        """One response.

        Raises:
            ResponseAborted: `abort` cut it, or an update that lets nothing go on.
        """

    def responsive(self) -> bool:
        """Whether the engine, not only its HTTP front, answers in time."""

    def workers(self) -> int:
        """Processes that hold a part of the model; each receives the weights."""

    def begin_update(self, transport: Mapping[str, Any]) -> None:
        """See `ServedEngine`; likewise the next three."""

    def receive(self, bucket: Mapping[str, Any], digests_of: Sequence[str] | None) -> None:
        """Has every worker load the bucket, and count digests of these tensors (None: of all)."""

    def received_digests(self) -> list[dict[str, str]]:
        """By worker."""

    def left_out(self) -> list[str]:
        """The engine's own names of layers that the update brought nothing for."""

    def finish_update(self, version: int) -> None:
        """See `ServedEngine`."""

    def abort(self) -> None:
        """Cuts every response under way: their `generate` raises `ResponseAborted`. Later ones are none of it."""

    def end(self) -> None:
        """Ends the server where the run started it, and drops all connections."""


class ServerUnreachableError(RuntimeError):
    """No answer came: the server is gone or hangs, or the way to it does."""
