"""Kimi K2.5's objective (2602.02276, section 4.4.2, eq. 1): a token outside a band of ratios has no policy gradient.

With r = policy / old:

    keep = [ratio_low <= r <= ratio_high], detached, whatever the advantage's sign
    -keep r A + tau (log r)^2

Defaults: band [0.9, 1.1], tau 1e-3; the paper publishes neither. The advantage is 'dr_grpo' (R - mean, no
standard deviation). At r = 1 the gradient is -A grad log policy. PPO's clip drops a token only where the ratio has
moved the way that its advantage pushes; here the side does not matter. The pull grows with any distance.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from megarl.objectives.batch import ObjectiveOutput, TokenBatch
from megarl.objectives.masked import MAX_LOG_RATIO, masked, masked_difference, masked_sum


@dataclass(frozen=True)
class K25:
    """Token clipping by a band, and a quadratic pull towards the old policy.

    Attributes:
        ratio_low: smallest ratio that keeps its gradient.
        ratio_high: largest ratio that keeps its gradient.
        tau: weight of the squared log-ratio.
    """

    ratio_low: float = 0.9
    ratio_high: float = 1.1
    tau: float = 1e-3
    needs: ClassVar[frozenset[str]] = frozenset({"advantages_BT", "old_log_probs_BT"})
    token_local: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """See the module's formula."""
        mask_BT = batch.mask_BT
        log_ratio_BT = masked_difference(batch.log_probs_BT, batch.given("old_log_probs_BT"), mask_BT)
        detached_BT = log_ratio_BT.detach()
        keep_BT = (detached_BT >= math.log(self.ratio_low)) & (detached_BT <= math.log(self.ratio_high))
        advantages_BT = masked(batch.given("advantages_BT"), mask_BT)
        # a wide band is the user's to give, and exp must not overflow beyond it
        ratio_BT = log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        policy_BT = masked(-ratio_BT * advantages_BT, keep_BT)
        loss_BT = policy_BT + self.tau * log_ratio_BT.square()
        return ObjectiveOutput(masked(loss_BT, mask_BT), {"policy/clip_share": masked_sum((~keep_BT).float(), mask_BT)})
