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
        lengths_B: int64 on the CPU, tokens of each row that are no padding: to lay a micro-batch out must not wait for
            the device.
        advantages_BT: fp32, or None before they are known; likewise the log-probs, in nats.
        old_log_probs_BT: by the trainer, before this batch's first update.
        rollout_log_probs_BT: by the engine; NaN where it gave none.
        reference_log_probs_BT: by the reference policy.
        correction_weights_BT: importance weights that were formed before the update, 0 for dropped tokens.
        correction_keep_BT: bool, the tokens that a correction before the update left.
        selected_BT: bool, the tokens that the objective's `select` took on the whole update batch.
        routed_experts_BTLK: int16, the experts that the engine sent each token to, by layer; -1 where it gave none.
        routed_weights_BTLK: fp32, its gate weights of those experts.
        old_values_BT: by the critic, before this batch's first update.
        returns_BT: what the critic is trained towards.
        total_tokens: trained tokens of the whole update batch that these sequences are part of, for the normalisation.
        total_responses: its responses with at least one trained token.
        total_sequences: its sequences that the model reads a token of, trained on or not.
        packed_tokens: of a micro-batch whose sequences the model is to read end to end: their tokens, with the padding
            after the last; None where it reads them as rows.
        reference_hidden_MH: of a micro-batch, what the reference's output layer reads at the trained tokens that this
            rank scores, for the exact KL.
    """

    tokens_BT: Tensor
    targets_BT: Tensor
    mask_BT: Tensor
    lengths_B: Tensor
    advantages_BT: Tensor | None = None
    old_log_probs_BT: Tensor | None = None
    rollout_log_probs_BT: Tensor | None = None
    reference_log_probs_BT: Tensor | None = None
    correction_weights_BT: Tensor | None = None
    correction_keep_BT: Tensor | None = None
    selected_BT: Tensor | None = None
    routed_experts_BTLK: Tensor | None = None
    routed_weights_BTLK: Tensor | None = None
    old_values_BT: Tensor | None = None
    returns_BT: Tensor | None = None
    total_tokens: int | None = None
    total_responses: int | None = None
    total_sequences: int | None = None
    packed_tokens: int | None = None
    reference_hidden_MH: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens_BT)

    def __getitem__(self, rows: slice | list[int]) -> "TrainBatch":
        """Some of the sequences, by a slice or by their numbers; the totals stay those of the whole.

        Raises:
            ValueError: the batch holds what belongs to one micro-batch.
        """
        if self.reference_hidden_MH is not None:
            raise ValueError("a micro-batch with the reference's hidden states cannot be cut further")
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        sliced: dict[str, Any] = {name: value[rows] for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **sliced)

    def with_totals(self) -> "TrainBatch":
        """The batch with its own totals: to be called on the whole update batch, before it is shared out."""
        return replace(
            self,
            total_tokens=int(self.mask_BT.sum()),
            total_responses=int(self.mask_BT.any(dim=1).sum()),
            total_sequences=int((self.lengths_B > 0).sum()),
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

    def parts(self, count: int) -> Iterator["TrainBatch"]:
        """Consecutive parts of equal size, `count` of them."""
        size = len(self) // count
        return (self[begin : begin + size] for begin in range(0, len(self), size))


def pad_batch(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], device: torch.device) -> TrainBatch:
    """Lays prompts and responses out as one batch. Padding is token 0, which the mask and causality both hide."""
    ends = [len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True)]
    # 2 at least: a model reads one token even where no response has any
    width = max(2, *ends)
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, (prompt, response, end) in enumerate(zip(prompts, responses, ends, strict=True)):
        ids[row, :end] = torch.tensor([*prompt, *response])
        mask[row, len(prompt) : end] = True
    ids, mask = ids.to(device), mask.to(device)
    return TrainBatch(
        tokens_BT=ids[:, :-1].contiguous(),
        targets_BT=ids[:, 1:].contiguous(),
        mask_BT=mask[:, 1:].contiguous(),
        # the last token is predicted, not read
        lengths_B=(torch.tensor(ends) - 1).clamp(min=0),
    )


def on_targets(batch: TrainBatch, values: Sequence[Sequence[float | None]]) -> Tensor:
    """Per-token values of the responses, laid out on the batch's targets; NaN elsewhere and for None, fp32 [B, T].

    Raises:
        ValueError: a response has not one value a token.
    """
    for row, (given, tokens) in enumerate(zip(values, batch.mask_BT.sum(dim=1).tolist(), strict=True)):
        if len(given) != tokens:
            raise ValueError(f"response {row} has {tokens} tokens, and {len(given)} values came for them")
    laid_out = torch.full(batch.mask_BT.shape, float("nan"), device=batch.mask_BT.device)
    flat = [float("nan") if value is None else value for row in values for value in row]
    laid_out[batch.mask_BT] = torch.tensor(flat, dtype=torch.float32, device=laid_out.device)
    return laid_out
