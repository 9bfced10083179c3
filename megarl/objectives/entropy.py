"""Entropy in the loss: any objective, less a bonus for the policy's entropy at each token."""

from dataclasses import dataclass

from megarl.objectives.batch import Objective, ObjectiveOutput, TokenBatch, is_token_local
from megarl.objectives.masked import masked, masked_log_ratio, masked_sum


@dataclass(frozen=True)
class EntropyBonus:
    """`inner` minus `coefficient` * entropy (Williams and Peng 1991). With coefficient 0 the entropy is only measured.

    Attributes:
        inner: the objective.
        coefficient: weight of the entropy, in loss a nat.
    """

    inner: Objective
    coefficient: float = 0.0

    @property
    def needs(self) -> frozenset[str]:
        """What the objective needs."""
        return self.inner.needs

    @property
    def token_local(self) -> bool:
        """Whether the objective is."""
        return is_token_local(self.inner)

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """The objective's loss terms with the bonus taken off."""
        output = self.inner(batch)
        metrics = {"policy/entropy": masked_sum(batch.entropy_BT, batch.mask_BT)}
        if batch.old_log_probs_BT is not None:
            log_ratio_BT = masked_log_ratio(batch.log_probs_BT.detach(), batch.old_log_probs_BT, batch.mask_BT)
            metrics["policy/ratio_mean"] = masked_sum(log_ratio_BT.exp(), batch.mask_BT)
        loss_BT = output.loss_BT
        if self.coefficient:
            loss_BT = loss_BT - self.coefficient * masked(batch.entropy_BT, batch.mask_BT)
        return ObjectiveOutput(loss_BT, {**output.metrics, **metrics})
