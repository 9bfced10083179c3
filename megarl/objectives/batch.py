"""What an objective reads and what it returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

Sum = tuple[Tensor, Tensor]
"""A metric as its sum and its count, both scalars, so that ranks and micro-batches add up."""


@dataclass(frozen=True)
class TokenBatch:
    """Per-token tensors of one micro-batch; B responses, T positions.

    Attributes:
        log_probs_BT: log-prob of each token under the current policy, in nats; carries the gradient.
        mask_BT: bool, True on the tokens that are trained. What the other tensors hold elsewhere is never read.
        entropy_BT: entropy of the current policy at each position, in nats; carries a gradient too.
        advantages_BT: advantage of each token, or None for objectives that take none.
        old_log_probs_BT: log-prob under the trainer's policy at the start of the batch, detached.
        rollout_log_probs_BT: log-prob that the engine gave when it sampled the token, detached.
        reference_log_probs_BT: log-prob under the reference policy, detached.
        reference_kl_BT: KL(policy || reference) over the vocabulary at each position, in nats; carries a gradient.
        correction_weights_BT: importance weights that were formed before the update, 0 for dropped tokens.
        correction_keep_BT: bool, the tokens that a correction before the update left.
        selected_BT: bool, the tokens that the objective's `select` took on the whole update batch.
    """

    log_probs_BT: Tensor
    mask_BT: Tensor
    entropy_BT: Tensor
    advantages_BT: Tensor | None = None
    old_log_probs_BT: Tensor | None = None
    rollout_log_probs_BT: Tensor | None = None
    reference_log_probs_BT: Tensor | None = None
    reference_kl_BT: Tensor | None = None
    correction_weights_BT: Tensor | None = None
    correction_keep_BT: Tensor | None = None
    selected_BT: Tensor | None = None

    def given(self, name: str) -> Tensor:
        """The tensor of that name.

        Raises:
            ValueError: the batch was made without it.
        """
        tensor: Tensor | None = getattr(self, name)
        if tensor is None:
            raise ValueError(f"this objective needs {name}, and the batch has none")
        return tensor


@dataclass(frozen=True)
class ObjectiveOutput:
    """Per-token loss terms, before any normalisation.

    Attributes:
        loss_BT: loss of each token, 0 where the mask is False.
        metrics: named sums and counts over this micro-batch, detached.
    """

    loss_BT: Tensor
    metrics: Mapping[str, Sum]


class Objective(Protocol):
    """A policy loss: tensors in, per-token terms out. It knows nothing of ranks, Megatron or files."""

    @property
    def needs(self) -> frozenset[str]:
        """Names of the optional tensors of `TokenBatch` that it reads."""

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """The loss terms of `batch`."""


@runtime_checkable
class Selects(Protocol):
    """An objective that needs `selected_BT`: tokens that are chosen once, on the whole update batch."""

    def select(self, covariance_BT: Tensor, mask_BT: Tensor, generator: torch.Generator) -> Tensor:
        """The chosen tokens.

        Args:
            covariance_BT: fp64, see `megarl.objectives.covariance.token_covariance`.
            mask_BT: bool, the trained tokens of the update batch.
            generator: on the CPU, of this update alone.

        Returns:
            bool [B, T].
        """


def is_token_local(objective: Objective) -> bool:
    """Whether the objective says that a token's term reads no other token's tensors, by `token_local = True`.

    Its gradient can then be formed chunk by chunk. One that says nothing sees whole responses.
    """
    return bool(getattr(objective, "token_local", False))
