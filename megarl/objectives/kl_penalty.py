"""A KL term in the loss: any objective, plus beta * k(policy, reference) per token."""

from dataclasses import dataclass

from torch import Tensor

from megarl.objectives.batch import Objective, ObjectiveOutput, TokenBatch, is_token_local
from megarl.objectives.kl import COEFFICIENTS, ESTIMATORS, WEIGHTED_COEFFICIENTS, k1, k3
from megarl.objectives.masked import masked, masked_difference, masked_log_ratio, masked_sum


@dataclass(frozen=True)
class KLPenalty:
    """`inner` plus `coefficient` times the estimator. With coefficient 0 the KL is measured, not trained on.

    Attributes:
        inner: the objective.
        coefficient: beta.
        estimator: 'k1', 'k2' or 'k3', of the sampled token; or 'full', the exact KL of the position's distributions.
        importance_weighted: multiplies the estimator by r = policy / old, through which the gradient flows: for
            responses that an older policy sampled (DeepSeek-V3.2, 2512.02556, section 3.1, eq. 7). The value is
            unbiased at token level only: it weighs the token, not the prefix that it was sampled after.
        bypass: takes the engine's log-probs for the old ones in r, as the paper does, whose old policy is the engine's.
            A token without a finite one has no term.
        cap: bound on the magnitude of the estimator's gradient coefficient, which leaves the value as it is; None for
            no bound. The coefficient is c, or under an importance weight r the factor k + c of r.
    """

    inner: Objective
    coefficient: float
    estimator: str = "k3"
    importance_weighted: bool = False
    cap: float | None = None
    bypass: bool = False

    @property
    def needs(self) -> frozenset[str]:
        """What the objective needs, and the reference where there is a term to train."""
        own = {"reference_log_probs_BT"} if self.coefficient else set()
        own = own | ({"reference_kl_BT"} if self.coefficient and self.estimator == "full" else set())
        return self.inner.needs | own | ({self._sampler} if self.importance_weighted else set())

    @property
    def token_local(self) -> bool:
        """Whether the objective is; the exact KL is formed elsewhere."""
        return is_token_local(self.inner) and not (self.coefficient and self.estimator == "full")

    @property
    def _sampler(self) -> str:
        """Name of the log-probs of the policy that the responses are taken to come from."""
        return "rollout_log_probs_BT" if self.bypass else "old_log_probs_BT"

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """The objective's loss terms with the KL's added."""
        output = self.inner(batch)
        if batch.reference_log_probs_BT is None and not self.coefficient:
            return output
        mask_BT = batch.mask_BT
        x_BT = masked_difference(batch.log_probs_BT, batch.given("reference_log_probs_BT"), mask_BT)
        metrics = {
            **output.metrics,
            "kl/reference_k1": masked_sum(k1(x_BT), mask_BT),
            "kl/reference_k3": masked_sum(k3(x_BT), mask_BT),
        }
        if batch.reference_kl_BT is not None:
            metrics["kl/reference_full"] = masked_sum(batch.reference_kl_BT, mask_BT)
        if self.estimator == "full":
            if not self.coefficient:
                return ObjectiveOutput(output.loss_BT, metrics)
            term_BT = masked(batch.given("reference_kl_BT"), mask_BT)
            return ObjectiveOutput(output.loss_BT + self.coefficient * term_BT, metrics)
        table = WEIGHTED_COEFFICIENTS if self.importance_weighted else COEFFICIENTS
        coefficient_BT = table[self.estimator](x_BT.detach())
        metrics |= {
            "kl/coefficient_abs": masked_sum(coefficient_BT.abs(), mask_BT),
            "kl/coefficient_above_10_share": masked_sum((coefficient_BT.abs() > 10).float(), mask_BT),
        }
        if not self.coefficient:
            return ObjectiveOutput(output.loss_BT, metrics)
        return ObjectiveOutput(output.loss_BT + self.coefficient * self._term(batch, x_BT, coefficient_BT), metrics)

    def _term(self, batch: TokenBatch, x_BT: Tensor, coefficient_BT: Tensor) -> Tensor:
        """The estimate of each token, with its gradient."""
        term_BT = ESTIMATORS[self.estimator](x_BT)
        if self.cap is not None:
            coefficient_BT = coefficient_BT.clamp(-self.cap, self.cap)
        if self.cap is not None or self.importance_weighted:
            term_BT = _with_coefficient(term_BT, coefficient_BT, x_BT)
        if not self.importance_weighted:
            return term_BT
        sampler_BT = batch.given(self._sampler)
        # the engine may give no log-prob; the trainer always does, and NaN of its own must be seen
        known_BT = batch.mask_BT & sampler_BT.isfinite() if self.bypass else batch.mask_BT
        # detached: what flows through r is in the coefficient, where a cap bounds it and k3's e^-x cancels
        ratio_BT = masked_log_ratio(batch.log_probs_BT.detach(), sampler_BT, known_BT).exp()
        return masked(term_BT * ratio_BT, known_BT)


def _with_coefficient(value_BT: Tensor, coefficient_BT: Tensor, x_BT: Tensor) -> Tensor:
    """The same value, with the gradient coefficient_BT * grad x."""
    return value_BT.detach() + coefficient_BT * (x_BT - x_BT.detach())
