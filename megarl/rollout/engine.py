"""The one engine interface."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from torch import Tensor

from megarl.rollout.types import Completion, Request, SamplingParams


class Engine(Protocol):
    """Generates with weights that the trainer gives it."""

    version: int
    """Version of the weights that it holds; -1 before the first load."""

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes every tensor of the model, under Hugging Face names; whatever was cached with the old ones is void.

        Raises:
            WeightsError: a tensor is missing, unknown, sent twice or of another shape; the engine then has no weights.
        """

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """One completion a request, in their order."""


class WeightsError(RuntimeError):
    """The tensors that arrived are not the engine's model."""
