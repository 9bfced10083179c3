"""Per-token estimators of KL(policy || reference) from samples of the policy (Schulman, 'Approximating KL', 2020).

With x = log policy - log reference at the sampled token:

    k1 = x                  unbiased, high variance, negative on single tokens
    k2 = x^2 / 2            biased as a value; its gradient is the reverse KL's when on-policy
    k3 = e^-x + x - 1       unbiased where the policy covers the reference, never negative

As a loss each has the gradient c grad log policy. On-policy k1's c = 1 has expectation 0: it is noise. k2's c = x is
the reverse KL's. k3's c = 1 - e^-x is the gradient of the forward KL(reference || policy), and explodes on tokens that
the reference likes and the policy does not. Below x = -20 it is left at its value there, with no gradient.

Under an importance weight r = policy / sampler a term is r k, with the gradient r (k + c) grad log policy. For k1 and
k3 that is the reverse KL's, and for k3 it is r x: e^-x cancels.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from megarl.objectives.masked import MAX_LOG_RATIO


def k1(log_ratio_policy_over_reference: Tensor) -> Tensor:
    """k1, in nats, elementwise."""
    return log_ratio_policy_over_reference


def k2(log_ratio_policy_over_reference: Tensor) -> Tensor:
    """k2, in nats, elementwise."""
    return 0.5 * log_ratio_policy_over_reference.square()


def k3(log_ratio_policy_over_reference: Tensor) -> Tensor:
    """k3, in nats, elementwise.

    expm1 keeps the value right, and never negative, where the ratio is near 1 and e^-x - 1 cancels. Both terms are
    bounded below together: with e^-x alone bounded, the gradient of what is left would push the wrong way.
    """
    bounded = log_ratio_policy_over_reference.clamp(min=-MAX_LOG_RATIO)
    return torch.expm1(-bounded) + bounded


def k1_coefficient(log_ratio_policy_over_reference: Tensor) -> Tensor:
    """c of k1's gradient c grad log policy."""
    return torch.ones_like(log_ratio_policy_over_reference)


def k2_coefficient(log_ratio_policy_over_reference: Tensor) -> Tensor:
    """c of k2's gradient."""
    return log_ratio_policy_over_reference


def k3_coefficient(log_ratio_policy_over_reference: Tensor) -> Tensor:
    """c of k3's gradient, 1 - e^20 below x = -20; `k3` itself has none there, a capped term still has its cap."""
    return -torch.expm1(-log_ratio_policy_over_reference.clamp(min=-MAX_LOG_RATIO))


def k1_weighted_coefficient(log_ratio_policy_over_reference: Tensor) -> Tensor:
    """k + c of k1, the factor of r in the gradient of r k1."""
    return log_ratio_policy_over_reference + 1.0


def k2_weighted_coefficient(log_ratio_policy_over_reference: Tensor) -> Tensor:
    """k + c of k2."""
    return k2(log_ratio_policy_over_reference) + log_ratio_policy_over_reference


def k3_weighted_coefficient(log_ratio_policy_over_reference: Tensor) -> Tensor:
    """k + c of k3, which is x: formed as such, since k and c are both e^-x large where they cancel."""
    return log_ratio_policy_over_reference


Estimator = Callable[[Tensor], Tensor]
ESTIMATORS: Mapping[str, Estimator] = {"k1": k1, "k2": k2, "k3": k3}
COEFFICIENTS: Mapping[str, Estimator] = {"k1": k1_coefficient, "k2": k2_coefficient, "k3": k3_coefficient}
WEIGHTED_COEFFICIENTS: Mapping[str, Estimator] = {
    "k1": k1_weighted_coefficient,
    "k2": k2_weighted_coefficient,
    "k3": k3_weighted_coefficient,
}
