"""Clip-Cov (Cui et al. 2025, 2505.22617, section 4.2): some tokens of high covariance give no gradient.

Per token, with r = policy / old:

    L = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)),   detached on the selected tokens

Selected are cov_share of the update batch's trained tokens, drawn at random from those whose covariance of log-prob
and advantage lies in [cov_low, cov_high]; see `megarl.objectives.covariance`. Defaults: 2e-4, 1 and 5, the paper's;
clip 1 and 1, with which the authors ran it, so that the ratio's clip takes extreme tokens alone. At r = 1 the gradient
is -A grad log policy, and 0 on the selected tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from megarl.config.names import CLIP_COV_BAND
from megarl.objectives.batch import ObjectiveOutput, TokenBatch
from megarl.objectives.covariance import select_between
from megarl.objectives.masked import masked, masked_log_ratio, masked_sum
from megarl.objectives.ppo_term import clipped_surrogate


@dataclass(frozen=True)
class ClipCov:
    """PPO's surrogate, without the gradient of the selected tokens.

    Attributes:
        clip_low: the ratio is clipped below at 1 - clip_low.
        clip_high: the ratio is clipped above at 1 + clip_high.
        cov_share: the paper's r, the share of the trained tokens that is selected.
        cov_low: smallest covariance that is selected from.
        cov_high: largest covariance that is selected from.
    """

    clip_low: float = 1.0
    clip_high: float = 1.0
    cov_share: float = 2e-4
    cov_low: float = CLIP_COV_BAND[0]
    cov_high: float = CLIP_COV_BAND[1]
    needs: ClassVar[frozenset[str]] = frozenset({"advantages_BT", "old_log_probs_BT", "selected_BT"})
    token_local: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """See the module's formula."""
        mask_BT = batch.mask_BT
        selected_BT = batch.given("selected_BT") & mask_BT
        loss_BT, clipped_BT = clipped_surrogate(
            masked_log_ratio(batch.log_probs_BT, batch.given("old_log_probs_BT"), mask_BT),
            masked(batch.given("advantages_BT"), mask_BT),
            self.clip_low,
            self.clip_high,
        )
        loss_BT = torch.where(selected_BT, loss_BT.detach(), loss_BT)
        metrics = {
            "policy/clip_share": masked_sum((clipped_BT | selected_BT).float(), mask_BT),
            "policy/selected_share": masked_sum(selected_BT.float(), mask_BT),
        }
        return ObjectiveOutput(masked(loss_BT, mask_BT), metrics)

    def select(self, covariance_BT: Tensor, mask_BT: Tensor, generator: torch.Generator) -> Tensor:
        """The tokens of a whole update batch whose gradient is taken, bool [B, T]."""
        return select_between(covariance_BT, mask_BT, self.cov_low, self.cov_high, self.cov_share, generator)
