"""Per-token estimators of KL(policy || reference) from samples of the policy (Schulman, 'Approximating KL', 2020).

With x = log policy - log reference at the sampled token:

    k1 = x                  unbiased, high variance, negative on single tokens
    k2 = x^2 / 2            biased as a value; its gradient is the reverse KL's when on-policy
    k3 = e^-x + x - 1       unbiased where the policy covers the reference, never negative
"""

import torch
from torch import Tensor


def k1(log_ratio_policy_over_reference: Tensor) -> Tensor:
    """k1, in nats, elementwise."""
    return log_ratio_policy_over_reference


def k2(log_ratio_policy_over_reference: Tensor) -> Tensor:
    """k2, in nats, elementwise."""
    return 0.5 * log_ratio_policy_over_reference.square()


def k3(log_ratio_policy_over_reference: Tensor) -> Tensor:
    """k3, in nats, elementwise.

    expm1 keeps the value right, and never negative, where the ratio is near 1 and e^-x - 1 cancels.
    """
    return torch.expm1(-log_ratio_policy_over_reference) + log_ratio_policy_over_reference
