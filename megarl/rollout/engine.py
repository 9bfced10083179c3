"""The engine interfaces: what generates, and the two ways in which it gets weights."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from megarl.rollout.types import Completion, Request, SamplingParams


class Engine(Protocol):
    """Generates with weights that the trainer gives it."""

    version: int
    """Version of the weights that it holds; -1 before the first load."""

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """One completion a request, in their order."""


class LocalEngine(Engine, Protocol):
    """Lives in a trainer's process; every rank has one."""

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes every tensor of the model, under Hugging Face names; whatever was cached with the old ones is void.

        Raises:
            WeightsError: a tensor is missing, unknown, sent twice or of another shape; the engine then has no weights.
        """


class ServedEngine(Engine, Protocol):
    """Lives in processes of its own, one or several replicas; the main rank alone talks to them.

    An update is `begin_update`, any number of `receive`, `finish_update`. Each may raise `EngineLost`; the update is
    then void, and `revive` and a whole update give the engine its weights again.
    """

    def generate_on_each(self, requests: Sequence[Request], sampling: SamplingParams) -> list[list[Completion]]:
        """One completion a request from every replica, by replica.

        Raises:
            EngineLost: a replica died or hangs.
        """

    @property
    def lost(self) -> bool:
        """Whether a server is known to have died or to hang, and was not revived."""

    def workers(self) -> int:
        """Processes that receive the weights."""

    def begin_update(self, transport: Mapping[str, Any]) -> None:
        """Pauses generation and readies the weights for being replaced. `transport` tells the workers what to read."""

    def receive(self, bucket: Mapping[str, Any], digests_of: Sequence[str] | None = None) -> None:
        """Has every worker load one bucket, which lies where the transport put it; returns once it may go.

        The workers count digests of the tensors named, or of all.
        """

    def received_digests(self) -> list[dict[str, str]]:
        """What each worker counted over the bytes that it received in this update, by tensor."""

    def finish_update(self, version: int) -> list[str]:
        """Puts the new weights to use under this version, drops what was cached with the old ones, and resumes.

        Returns:
            The engine's own names of the layers that the update brought nothing for.
        """

    def revive(self) -> bool:
        """Starts again what died or hangs, and waits for what is starting; whether there was any. It has no weights.

        Raises:
            EngineError: it does not come back, or `engine.restarts` is used up.
        """

    def close(self) -> None:
        """Ends what it started."""


class WeightsError(RuntimeError):
    """The tensors that arrived are not the engine's model."""


class EngineError(RuntimeError):
    """An engine that cannot go on."""


class ResponseAborted(EngineError):  # noqa: N818 - an error only where nobody asked for it
    """The engine was told to drop what it was working on.

    Attributes:
        partial: the response as far as it came; its finish reason is 'abort'.
    """

    def __init__(self, partial: Completion) -> None:
        super().__init__(f"the engine dropped a response to {partial.request.problem_id} that it was working on")
        self.partial = partial


class EngineLost(EngineError):  # noqa: N818 - it is no error yet: the run revives the engine
    """Every replica died or hangs; the run can go on once `revive` and an update have succeeded.

    Attributes:
        completions: by number of the request, what was done before.
    """

    def __init__(self, message: str, completions: Mapping[int, Completion] | None = None) -> None:
        super().__init__(message)
        self.completions = dict(completions or {})
