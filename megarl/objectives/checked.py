"""A user's own objective, whose answers are checked: a wrong shape would broadcast, and train on another gradient."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from megarl.objectives.batch import Objective, ObjectiveOutput, Selects, TokenBatch, is_token_local

_RUNS_OWN = (
    *("reward/", "response/", "rollout/", "policy/", "kl/", "correction/", "covariance/", "drift/", "critic/", "moe/"),
    *("seconds/", "tokens_per_s/", "sft/"),
)
_AN_OBJECTIVES = ("policy/clip_share",)
"""What a run's own metrics begin with, and the one name among them that is an objective's to give."""

OPTIONAL = tuple(field.name for field in fields(TokenBatch) if field.default is None)
"""Names that an objective may need."""


@dataclass(frozen=True)
class CheckedObjective:
    """The objective, as it is, with checks of what it returns.

    Attributes:
        inner: the user's.
        name: its dotted path, for messages.
    """

    inner: Objective
    name: str

    @property
    def needs(self) -> frozenset[str]:
        """What the user's needs."""
        return self.inner.needs

    @property
    def token_local(self) -> bool:
        """What the user's says."""
        return is_token_local(self.inner)

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """The loss terms of the user's objective.

        Raises:
            TypeError: it returned no ObjectiveOutput, or a metric that is no pair of scalar tensors.
            ValueError: its loss is not of the mask's shape or carries no gradient, or a metric takes a reserved name.
        """
        output = self.inner(batch)
        if not isinstance(output, ObjectiveOutput):
            raise TypeError(f"{self.name} returned a {type(output).__name__}, not an ObjectiveOutput")
        self._check_loss(output.loss_BT, batch)
        self._check_metrics(output.metrics)
        return output

    def select(self, covariance_BT: Tensor, mask_BT: Tensor, generator: torch.Generator) -> Tensor:
        """The tokens that the user's objective selects; see `Selects`.

        Raises:
            ValueError: they are no bool tensor of the mask's shape.
        """
        assert isinstance(self.inner, Selects)
        selected_BT = self.inner.select(covariance_BT, mask_BT, generator)
        given = _described(selected_BT)
        if given != _described(mask_BT):
            raise ValueError(f"{self.name}.select returned {given}, not {_described(mask_BT)} as its mask is")
        return selected_BT

    def _check_loss(self, loss_BT: Tensor, batch: TokenBatch) -> None:
        shape = tuple(batch.mask_BT.shape)
        if not isinstance(loss_BT, Tensor) or tuple(loss_BT.shape) != shape:
            raise ValueError(f"{self.name} returned a loss of {_described(loss_BT)}, not one term a token, {shape}")
        if batch.log_probs_BT.requires_grad and not loss_BT.requires_grad:
            raise ValueError(f"{self.name} returned a loss without a gradient; form it from log_probs_BT or entropy_BT")

    def _check_metrics(self, metrics: Mapping[str, object]) -> None:
        for name, pair in metrics.items():
            if name in ("loss", "lr") or (name.startswith(_RUNS_OWN) and name not in _AN_OBJECTIVES):
                raise ValueError(f"{self.name} returned a metric named {name}, which is the run's own; rename it")
            parts = pair if isinstance(pair, tuple) else ()
            if len(parts) != 2 or not all(isinstance(part, Tensor) and part.dim() == 0 for part in parts):
                raise TypeError(f"{self.name} returned the metric {name} as no pair of scalar tensors, (sum, count)")


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
