"""What a diagnosis can ask of the two sides, where they can be asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from megarl.drift.diagnosis.computation import Computation, Dtype
from megarl.drift.diagnosis.rollouts import Rollouts


@dataclass(frozen=True)
class Traits:
    """What is known of a model that experiments are run on.

    Attributes:
        dtype: that the trainer computes in.
        head: dtype of its output layer.
        residual: dtype of its residual stream.
        layers: of the transformer.
        tied: whether its output layer is its embedding.
        rope_theta: base of its rotary embedding.
        experts: in a layer; 0 for a dense model.
        experts_per_token: that a token goes to.
        renormalise: whether their weights sum to 1.
        ages: older weights that are at hand, newest first.
        openers: runs of tokens that a chat template may put before a prompt, such as the one of a begin token.
    """

    dtype: Dtype
    head: Dtype
    residual: Dtype
    layers: int
    tied: bool
    rope_theta: float
    experts: int = 0
    experts_per_token: int = 0
    renormalise: bool = True
    ages: int = 0
    openers: Sequence[tuple[int, ...]] = field(default=())


class Model(Protocol):
    """The trainer's model, or another with its weights, that computes as an experiment asks."""

    @property
    def traits(self) -> Traits:
        """What it is."""

    def logits(self, rollouts: Rollouts, computation: Computation) -> Tensor:
        """fp32 or fp64 [N, V]: what each token of the responses was drawn from, before the temperature."""

    def hidden_states(self, rollouts: Rollouts, computation: Computation) -> list[Tensor]:
        """[M, H] of the embedding and behind each layer, at every token of prompt and response, row by row."""

    def digests(self) -> Mapping[str, str]:
        """A digest of each tensor's bytes, by its published name."""


class EngineSide(Protocol):
    """The engine, as far as it can be asked; None stands for what it cannot tell."""

    def log_probs(self, rollouts: Rollouts, rows_at_once: int) -> Tensor | None:
        """fp64 [N], in nats, of the responses' tokens, with so many sequences run together."""

    def hidden_states(self, rollouts: Rollouts) -> list[Tensor] | None:
        """See `Model`."""

    def digests(self) -> Mapping[str, str] | None:
        """See `Model`."""
