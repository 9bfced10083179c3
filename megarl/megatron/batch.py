"""Responses as padded tensors, ready for the trainer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TrainBatch:
    """B sequences of prompt and response, padded on the right to T + 1 tokens; position t predicts token t + 1.

    Attributes:
        tokens_BT: int64, the tokens that are read.
        targets_BT: int64, the tokens that are predicted.
        mask_BT: bool, True where the target is a token of the response.
        advantages_BT: fp32, or None before they are known; likewise the log-probs, in nats.
        old_log_probs_BT: by the trainer, before this batch's first update.
        rollout_log_probs_BT: by the engine; NaN where it gave none.
        reference_log_probs_BT: by the reference policy.
        correction_weights_BT: importance weights that were formed before the update, 0 for dropped tokens.
        correction_keep_BT: bool, the tokens that a correction before the update left.
        selected_BT: bool, the tokens that the objective's `select` took on the whole update batch.
        old_values_BT: by the critic, before this batch's first update.
        returns_BT: what the critic is trained towards.
        total_tokens: trained tokens of the whole update batch that these sequences are part of, for the normalisation.
        total_responses: its responses with at least one trained token.
    """

    tokens_BT: Tensor
    targets_BT: Tensor
    mask_BT: Tensor
    advantages_BT: Tensor | None = None
    old_log_probs_BT: Tensor | None = None
    rollout_log_probs_BT: Tensor | None = None
    reference_log_probs_BT: Tensor | None = None
    correction_weights_BT: Tensor | None = None
    correction_keep_BT: Tensor | None = None
    selected_BT: Tensor | None = None
    old_values_BT: Tensor | None = None
    returns_BT: Tensor | None = None
    total_tokens: int | None = None
    total_responses: int | None = None

    def __len__(self) -> int:
        return len(self.tokens_BT)

    def __getitem__(self, rows: slice) -> "TrainBatch":
        """The sequences of a slice; the totals stay those of the whole."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        sliced: dict[str, Any] = {name: value[rows] for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **sliced)

    def with_totals(self) -> "TrainBatch":
        """The batch with its own totals: to be called on the whole update batch, before it is shared out."""
        return replace(
            self,
            total_tokens=int(self.mask_BT.sum()),
            total_responses=int(self.mask_BT.any(dim=1).sum()),
        )

    def with_rollout(
        self,
        advantages: Tensor,
        *,
        old_log_probs_BT: Tensor,
        rollout_log_probs_BT: Tensor | None = None,
        reference_log_probs_BT: Tensor | None = None,
    ) -> "TrainBatch":
        """The batch with what an objective needs; advantages are [B, T], or [B] for the same on all of a response."""
        return replace(
            self,
            advantages_BT=advantages.to(self.mask_BT.device).reshape(len(self), -1).expand(self.mask_BT.shape),
            old_log_probs_BT=old_log_probs_BT,
            rollout_log_probs_BT=rollout_log_probs_BT,
            reference_log_probs_BT=reference_log_probs_BT,
        )

    def micro_batches(self, size: int) -> Iterator["TrainBatch"]:
        """Consecutive slices of `size` sequences."""
        return (self[begin : begin + size] for begin in range(0, len(self), size))


def pad_batch(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], device: torch.device) -> TrainBatch:
    """Lays prompts and responses out as one batch. Padding is token 0, which the mask and causality both hide."""
    width = max(len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True))
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        end = len(prompt) + len(response)
        ids[row, :end] = torch.tensor([*prompt, *response])
        mask[row, len(prompt) : end] = True
    ids, mask = ids.to(device), mask.to(device)
    return TrainBatch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), mask[:, 1:].contiguous())


def on_targets(batch: TrainBatch, values: Sequence[Sequence[float]]) -> Tensor:
    """Per-token values of the responses, laid out on the batch's targets; NaN elsewhere, fp32 [B, T]."""
    laid_out = torch.full(batch.mask_BT.shape, float("nan"), device=batch.mask_BT.device)
    flat = torch.tensor([value for row in values for value in row], device=laid_out.device)
    laid_out[batch.mask_BT] = flat
    return laid_out
