"""DPPO with the total-variation mask (Qi et al. 2026, 2602.04879, eq. 12 and 13).

A token is dropped by the probability that it moved, not by its ratio.

With r = policy / rollout and dp = p_policy - p_rollout of the sampled token:

    keep = (A > 0 and dp <= delta) or (A <= 0 and dp >= -delta), detached
    -keep r A

Default: delta 0.2, that of the paper's large runs (appendix E), which also bound r at 5. Here r has no bound, as in
appendix C.1, where delta is 0.15. At r = 1 the gradient is -A grad log policy. A rare token may grow many times over
before the mask takes it, a likely one only a little. A token without a finite engine log-prob has no loss.
"""

from dataclasses import dataclass
from typing import ClassVar

from megarl.objectives.batch import ObjectiveOutput, TokenBatch
from megarl.objectives.masked import masked, masked_log_ratio, masked_sum


@dataclass(frozen=True)
class DPPOTV:
    """Trust region in probability, measured from the engine's distribution.

    Attributes:
        delta: largest change of a token's probability in its advantage's direction.
    """

    delta: float = 0.2
    needs: ClassVar[frozenset[str]] = frozenset({"advantages_BT", "rollout_log_probs_BT"})
    token_local: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """See the module's formula."""
        rollout_BT = batch.given("rollout_log_probs_BT")
        usable_BT = batch.mask_BT & rollout_BT.isfinite()
        log_ratio_BT = masked_log_ratio(batch.log_probs_BT, rollout_BT, usable_BT)
        moved_BT = masked(batch.log_probs_BT.detach(), usable_BT).exp() - masked(rollout_BT, usable_BT).exp()
        advantages_BT = masked(batch.given("advantages_BT"), usable_BT)
        keep_BT = (moved_BT <= self.delta).where(advantages_BT > 0, moved_BT >= -self.delta)
        loss_BT = masked(-log_ratio_BT.exp() * advantages_BT, keep_BT & usable_BT)
        metrics = {
            "policy/clip_share": masked_sum((~keep_BT).float(), batch.mask_BT),
            "policy/unusable_share": masked_sum((~usable_BT).float(), batch.mask_BT),
        }
        return ObjectiveOutput(loss_BT, metrics)
