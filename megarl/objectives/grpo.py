"""GRPO (Shao et al. 2024, 2402.03300, eq. 3), with separate clip bounds (DAPO, 2503.14476).

Per token, with r = policy / old and x = log policy - log reference:

    max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) + beta (e^-x + x - 1)

Defaults: clip 0.2 and 0.2, beta 0.001. At r = 1 the first term's gradient is -A grad log policy.
"""

from dataclasses import dataclass

from megarl.objectives.batch import ObjectiveOutput, TokenBatch
from megarl.objectives.kl import k1, k3
from megarl.objectives.masked import masked, masked_log_ratio, masked_sum
from megarl.objectives.ppo_term import clipped_surrogate


@dataclass(frozen=True)
class GRPO:
    """Clipped surrogate plus beta * k3(policy, reference).

    Attributes:
        clip_low: the ratio is clipped below at 1 - clip_low.
        clip_high: the ratio is clipped above at 1 + clip_high.
        kl_coefficient: beta; at 0 no reference is needed, though one that is given is still measured.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coefficient: float = 0.001

    @property
    def needs_reference(self) -> bool:
        """True where the loss holds the KL term."""
        return self.kl_coefficient > 0

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """See the module's formula.

        Raises:
            ValueError: advantages or old log-probs are missing, or the reference's where beta > 0.
        """
        if batch.advantages_BT is None or batch.old_log_probs_BT is None:
            raise ValueError("GRPO needs advantages_BT and old_log_probs_BT")
        mask_BT = batch.mask_BT
        log_ratio_current_over_old_BT = masked_log_ratio(batch.log_probs_BT, batch.old_log_probs_BT, mask_BT)
        advantages_BT = masked(batch.advantages_BT, mask_BT)
        loss_BT, clipped_BT = clipped_surrogate(
            log_ratio_current_over_old_BT, advantages_BT, self.clip_low, self.clip_high
        )
        metrics = {
            "policy/clip_share": masked_sum(clipped_BT.float(), mask_BT),
            "policy/entropy": masked_sum(batch.entropy_BT, mask_BT),
            "policy/ratio_mean": masked_sum(log_ratio_current_over_old_BT.exp(), mask_BT),
        }
        if batch.reference_log_probs_BT is not None:
            log_ratio_BT = masked_log_ratio(batch.log_probs_BT, batch.reference_log_probs_BT, mask_BT)
            kl_BT = k3(log_ratio_BT)
            metrics["kl/reference_k3"] = masked_sum(kl_BT, mask_BT)
            metrics["kl/reference_k1"] = masked_sum(k1(log_ratio_BT), mask_BT)
            if self.kl_coefficient > 0:
                loss_BT = loss_BT + self.kl_coefficient * kl_BT
        elif self.needs_reference:
            raise ValueError("GRPO with kl_coefficient > 0 needs reference_log_probs_BT")
        return ObjectiveOutput(masked(loss_BT, mask_BT), metrics)
