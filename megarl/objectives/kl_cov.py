"""KL-Cov (Cui et al. 2025, 2505.22617, section 4.2): tokens of the highest covariance are held to the old policy.

Per token, with r = policy / old:

    L = -A r,   and on the selected tokens   -A r + beta |log r|

Selected are the cov_share of the update batch's trained tokens that have the highest covariance of log-prob and
advantage; see `megarl.objectives.covariance`. |log r| is the estimate of KL(old || policy) of the authors' code. Its
gradient is sign(log r) grad log policy, so at r = 1 the whole gradient is -A grad log policy: the term pulls back from
the second update of a step on. The surrogate has no clip. Defaults: 2e-4, the paper's for 32B (2e-3 for 7B), beta 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from megarl.objectives.batch import ObjectiveOutput, TokenBatch
from megarl.objectives.covariance import select_largest
from megarl.objectives.masked import MAX_LOG_RATIO, masked, masked_difference, masked_sum


@dataclass(frozen=True)
class KLCov:
    """The unclipped surrogate, with a pull towards the old policy on the selected tokens.

    Attributes:
        cov_share: the paper's k, the share of the trained tokens that is selected.
        beta: weight of the pull, per nat.
    """

    cov_share: float = 2e-4
    beta: float = 1.0
    needs: ClassVar[frozenset[str]] = frozenset({"advantages_BT", "old_log_probs_BT", "selected_BT"})
    token_local: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """See the module's formula."""
        mask_BT = batch.mask_BT
        selected_BT = batch.given("selected_BT") & mask_BT
        log_ratio_current_over_old_BT = masked_difference(batch.log_probs_BT, batch.given("old_log_probs_BT"), mask_BT)
        # the pull has no exponential, and must not end where the ratio's bound is
        distance_BT = log_ratio_current_over_old_BT.abs()
        ratio_BT = log_ratio_current_over_old_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        loss_BT = -masked(batch.given("advantages_BT"), mask_BT) * ratio_BT
        loss_BT = loss_BT + self.beta * masked(distance_BT, selected_BT)
        metrics = {
            "policy/selected_share": masked_sum(selected_BT.float(), mask_BT),
            "policy/selected_distance": masked_sum(distance_BT, selected_BT),
        }
        return ObjectiveOutput(masked(loss_BT, mask_BT), metrics)

    def select(self, covariance_BT: Tensor, mask_BT: Tensor, generator: torch.Generator) -> Tensor:
        """The tokens of a whole update batch that are held, bool [B, T]; nothing is drawn."""
        return select_largest(covariance_BT, mask_BT, self.cov_share)
