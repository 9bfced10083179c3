"""Decoupled PPO (Hilton et al. 2021, 2110.00641; AReaL, 2505.24298, eq. 5): behaviour and proximal policy apart.

    (old / rollout) max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)),   r = policy / old

The first factor corrects for the policy that sampled and is detached; the second keeps the update near the proximal
policy. Defaults: clip 0.2 and 0.2. At r = 1 the gradient is -(old / rollout) A grad log policy. A token without a
finite engine log-prob has no loss.
"""

from dataclasses import dataclass
from typing import ClassVar

from megarl.objectives.batch import ObjectiveOutput, TokenBatch
from megarl.objectives.masked import masked, masked_log_ratio, masked_sum
from megarl.objectives.ppo_term import clipped_surrogate


@dataclass(frozen=True)
class DecoupledPPO:
    """The clipped surrogate under the weight old / rollout.

    Attributes:
        clip_low: the ratio is clipped below at 1 - clip_low.
        clip_high: the ratio is clipped above at 1 + clip_high.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    needs: ClassVar[frozenset[str]] = frozenset({"advantages_BT", "old_log_probs_BT", "rollout_log_probs_BT"})
    token_local: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """See the module's formula."""
        old_BT, rollout_BT = batch.given("old_log_probs_BT"), batch.given("rollout_log_probs_BT")
        mask_BT = batch.mask_BT & rollout_BT.isfinite()
        weight_BT = masked_log_ratio(old_BT, rollout_BT, mask_BT).exp().detach()
        loss_BT, clipped_BT = clipped_surrogate(
            masked_log_ratio(batch.log_probs_BT, old_BT, mask_BT),
            masked(batch.given("advantages_BT"), mask_BT),
            self.clip_low,
            self.clip_high,
        )
        metrics = {
            "policy/clip_share": masked_sum(clipped_BT.float(), batch.mask_BT),
            "policy/unusable_share": masked_sum((~mask_BT).float(), batch.mask_BT),
            "policy/behaviour_weight": masked_sum(weight_BT, mask_BT),
        }
        return ObjectiveOutput(masked(weight_BT * loss_BT, mask_BT), metrics)
