"""CISPO (MiniMax-M1, 2506.13585, eq. 4 and 5): the importance weight is clipped, the gradient never is.

    -sg(clip(r, 1 - clip_low, 1 + clip_high)) A log policy,   r = policy / old

Defaults: clip_low 1 (no lower bound, as in the paper), clip_high 4: the paper gives no value, and ScaleRL (2510.13786,
appendix 'CISPO clipping ratios') finds weights of at most 4, 5 or 8 alike. At r = 1 the gradient is -A grad
log policy; every token keeps one.
"""

from dataclasses import dataclass
from typing import ClassVar

from megarl.objectives.batch import ObjectiveOutput, TokenBatch
from megarl.objectives.masked import masked, masked_log_ratio, masked_sum


@dataclass(frozen=True)
class CISPO:
    """Policy gradient under a clipped, detached importance weight.

    Attributes:
        clip_low: the weight is at least 1 - clip_low.
        clip_high: the weight is at most 1 + clip_high.
    """

    clip_low: float = 1.0
    clip_high: float = 4.0
    needs: ClassVar[frozenset[str]] = frozenset({"advantages_BT", "old_log_probs_BT"})
    token_local: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """See the module's formula."""
        mask_BT = batch.mask_BT
        log_ratio_BT = masked_log_ratio(batch.log_probs_BT.detach(), batch.given("old_log_probs_BT"), mask_BT)
        ratio_BT = log_ratio_BT.exp()
        weight_BT = ratio_BT.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        advantages_BT = masked(batch.given("advantages_BT"), mask_BT)
        loss_BT = -weight_BT * advantages_BT * masked(batch.log_probs_BT, mask_BT)
        clipped_BT = (weight_BT != ratio_BT).float()
        return ObjectiveOutput(masked(loss_BT, mask_BT), {"policy/clip_share": masked_sum(clipped_BT, mask_BT)})
