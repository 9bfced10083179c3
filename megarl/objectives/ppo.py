"""PPO's clipped surrogate (Schulman et al. 2017, 1707.06347, eq. 7), and dual clip (Ye et al. 2020, 1912.09729, eq. 5).

Per token, with r = policy / old:

    L = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))
    with dual_clip c, where A < 0:  min(L, -A c)

Defaults: clip 0.2 and 0.2, dual clip off (the paper's c is 3). At r = 1 the gradient is -A grad log policy.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from megarl.objectives.batch import ObjectiveOutput, TokenBatch
from megarl.objectives.masked import masked, masked_log_ratio, masked_sum
from megarl.objectives.ppo_term import clipped_surrogate


@dataclass(frozen=True)
class PPO:
    """The clipped surrogate.

    Attributes:
        clip_low: the ratio is clipped below at 1 - clip_low.
        clip_high: the ratio is clipped above at 1 + clip_high.
        dual_clip: largest ratio that a token with a negative advantage pays for, above 1; None for no bound.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    needs: ClassVar[frozenset[str]] = frozenset({"advantages_BT", "old_log_probs_BT"})
    token_local: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """See the module's formula."""
        mask_BT = batch.mask_BT
        advantages_BT = masked(batch.given("advantages_BT"), mask_BT)
        log_ratio_current_over_old_BT = masked_log_ratio(batch.log_probs_BT, batch.given("old_log_probs_BT"), mask_BT)
        loss_BT, clipped_BT = clipped_surrogate(
            log_ratio_current_over_old_BT, advantages_BT, self.clip_low, self.clip_high
        )
        if self.dual_clip is not None:
            bound_BT = -advantages_BT * self.dual_clip
            beyond_BT = (advantages_BT < 0) & (loss_BT > bound_BT)
            loss_BT = torch.where(beyond_BT, bound_BT, loss_BT)
            clipped_BT = clipped_BT | beyond_BT
        return ObjectiveOutput(masked(loss_BT, mask_BT), {"policy/clip_share": masked_sum(clipped_BT.float(), mask_BT)})
