"""GSPO (Zheng et al. 2025, 2507.18071, eq. 5, 7, 13 and 14): a whole response's importance ratio, length-normalised.

With r_t = policy / old of one token and s = exp(mean_t log r_t) of its response:

    s_t = sg(s) policy_t / sg(policy_t)            value s, gradient s grad log policy_t
    max(-A s_t, -A clip(s_t, 1 - clip_low, 1 + clip_high))

Defaults: clip 3e-4 and 4e-4; the normalisation is 'seq_mean_token_mean'. At r = 1 the gradient is -A grad log policy.
"""

from dataclasses import dataclass
from typing import ClassVar

from megarl.objectives.batch import ObjectiveOutput, TokenBatch
from megarl.objectives.masked import MAX_LOG_RATIO, masked, masked_mean_per_response, masked_sum
from megarl.objectives.ppo_term import clipped_surrogate


@dataclass(frozen=True)
class GSPO:
    """Sequence-level clipping.

    Attributes:
        clip_low: the response's ratio is clipped below at 1 - clip_low.
        clip_high: the response's ratio is clipped above at 1 + clip_high.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    needs: ClassVar[frozenset[str]] = frozenset({"advantages_BT", "old_log_probs_BT"})

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """See the module's formula."""
        mask_BT = batch.mask_BT
        log_probs_BT = masked(batch.log_probs_BT, mask_BT)
        # unclamped: the mean is clamped instead, so that one token cannot hide in the bound of another
        log_ratio_BT = log_probs_BT.detach() - masked(batch.given("old_log_probs_BT"), mask_BT)
        log_ratio_B1 = masked_mean_per_response(log_ratio_BT, mask_BT)[:, None].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        log_s_BT = log_ratio_B1 + log_probs_BT - log_probs_BT.detach()
        advantages_BT = masked(batch.given("advantages_BT"), mask_BT)
        loss_BT, clipped_BT = clipped_surrogate(log_s_BT, advantages_BT, self.clip_low, self.clip_high)
        return ObjectiveOutput(masked(loss_BT, mask_BT), {"policy/clip_share": masked_sum(clipped_BT.float(), mask_BT)})
