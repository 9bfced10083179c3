"""Supervised fine-tuning: the negative log-likelihood of the demonstration, -log policy per token."""

from dataclasses import dataclass
from typing import ClassVar

from megarl.objectives.batch import ObjectiveOutput, TokenBatch
from megarl.objectives.masked import masked, masked_sum


@dataclass(frozen=True)
class SFT:
    """-log policy on the demonstration's tokens."""

    needs: ClassVar[frozenset[str]] = frozenset()
    token_local: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """The loss terms, in nats a token."""
        loss_BT = masked(-batch.log_probs_BT, batch.mask_BT)
        return ObjectiveOutput(loss_BT, {"sft/entropy": masked_sum(batch.entropy_BT, batch.mask_BT)})
