"""Any objective under a correction: rejected tokens have no loss, the others their importance weight."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from megarl.drift.corrections.correction import Corrected, Correction
from megarl.drift.corrections.opsm import OPSM
from megarl.drift.corrections.rejection import RejectTokens
from megarl.objectives.batch import Objective, ObjectiveOutput, Sum, TokenBatch, is_token_local
from megarl.objectives.masked import masked_difference, masked_sum


@dataclass(frozen=True)
class CorrectedObjective:
    """`inner`, corrected for the engine's distribution.

    In decoupled mode Delta = log old - log rollout, and the objective's own ratio stays policy / old. In bypass mode
    the engine's log-probs take the old ones' place: Delta = log policy - log rollout, the ratio is policy / rollout.

    Attributes:
        inner: the objective.
        correction: rejections and weights.
        bypass: which of the two modes.
        opsm: off-policy sequence masking, or None.
    """

    inner: Objective
    correction: Correction
    bypass: bool = False
    opsm: OPSM | None = None

    @property
    def needs(self) -> frozenset[str]:
        """What the objective needs, and the engine's log-probs; in bypass mode they stand in for the old ones."""
        needs = self.inner.needs | {"rollout_log_probs_BT"} | ({"advantages_BT"} if self.opsm else set())
        return needs - {"old_log_probs_BT"} if self.bypass else needs | {"old_log_probs_BT"}

    @property
    def token_local(self) -> bool:
        """Whether the objective and all that corrects it look at single tokens."""
        by_token = all(isinstance(rule, RejectTokens) for rule in self.correction.rules)
        return is_token_local(self.inner) and by_token and self.opsm is None

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """The objective's loss terms on the tokens that stay, each under its weight."""
        rollout_BT = batch.given("rollout_log_probs_BT")
        if self.bypass:
            batch = replace(batch, old_log_probs_BT=rollout_BT)
        weights_BT, keep_BT, metrics = self._weights(batch, rollout_BT)
        if self.opsm is not None:
            moved_BT = masked_difference(batch.log_probs_BT, batch.given("old_log_probs_BT"), keep_BT)
            stays_BT = self.opsm(moved_BT, batch.given("advantages_BT"), keep_BT)
            metrics["correction/opsm_dropped_share"] = masked_sum((keep_BT & ~stays_BT).float(), batch.mask_BT)
            keep_BT = stays_BT
        output = self.inner(replace(batch, mask_BT=keep_BT))
        loss_BT = torch.where(keep_BT, output.loss_BT * weights_BT, 0.0)
        return ObjectiveOutput(loss_BT, {**output.metrics, **metrics})

    def _weights(self, batch: TokenBatch, rollout_BT: Tensor) -> tuple[Tensor, Tensor, dict[str, Sum]]:
        """Weights, the tokens that stay, and what was done; formed before the update where the batch brings them."""
        if not self.bypass and batch.correction_weights_BT is not None:
            return batch.correction_weights_BT, batch.mask_BT & batch.given("correction_keep_BT"), {}
        trainer_BT = batch.log_probs_BT.detach() if self.bypass else batch.given("old_log_probs_BT")
        corrected = self.correction(trainer_BT, rollout_BT, batch.mask_BT)
        return corrected.weights_BT, corrected.keep_BT, correction_metrics(corrected, batch.mask_BT)


def correction_metrics(corrected: Corrected, mask_BT: Tensor) -> dict[str, Sum]:
    """Shares of the generated tokens, and the mean weight of those that stay."""
    return {
        "correction/kept_share": masked_sum(corrected.keep_BT.float(), mask_BT),
        "correction/unusable_share": masked_sum(corrected.unusable_BT.float(), mask_BT),
        "correction/weight_mean": masked_sum(corrected.weights_BT, corrected.keep_BT),
    }
