"""k1, k2 and k3: values, gradients, and the estimates that a known pair of distributions gives."""

import math

import pytest
import torch

from megarl.objectives.kl import k1, k2, k3
from tests.unit.objectives.reference import uniform

X = torch.cat([uniform(-5, 5, (200,), 0), torch.tensor([0.0, 20.0, -20.0], dtype=torch.float64)])


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        (k1, lambda x: x, lambda x: 1.0),
        (k2, lambda x: x * x / 2, lambda x: x),
        (k3, lambda x: math.exp(-x) + x - 1, lambda x: 1 - math.exp(-x)),
    ],
)
def test_values_and_gradients(estimator, value, slope) -> None:  # type: ignore[no-untyped-def]
    x = X.clone().requires_grad_()
    out = estimator(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(
        out.detach(), torch.tensor([value(v) for v in X.tolist()]).double(), rtol=1e-6, atol=1e-12
    )
    torch.testing.assert_close(gradient, torch.tensor([slope(v) for v in X.tolist()]).double(), rtol=1e-6, atol=1e-12)


def test_k3_keeps_its_digits_near_zero() -> None:
    # x^2/2 - x^3/6 is exact to 1e-8 relative here; e^-x + x - 1 taken literally has an error of 1e-4 of it
    x = torch.tensor([1e-6, -1e-6], dtype=torch.float64)
    torch.testing.assert_close(k3(x), x**2 / 2 - x**3 / 6, rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k3_is_never_negative(dtype: torch.dtype) -> None:
    exponents = uniform(-20, 1.3, (200_000,), 4)
    x = (10**exponents * torch.where(uniform(0, 1, exponents.shape, 5) < 0.5, -1.0, 1.0)).to(dtype)
    assert (k3(x) >= 0).all()


def test_estimates_of_a_known_divergence() -> None:
    # samples of Q = N(.1, .2) against P = N(0, 1); KL(Q, P) = ln 5 + (.04 + .01) / 2 - 1/2
    analytic = math.log(5) + (0.04 + 0.01) / 2 - 0.5
    assert analytic == pytest.approx(1.13444, abs=1e-5)
    policy, reference = torch.distributions.Normal(0.1, 0.2), torch.distributions.Normal(0.0, 1.0)
    samples = 0.1 + 0.2 * torch.randn(10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_ratio = policy.log_prob(samples) - reference.log_prob(samples)
    # standard errors .0068 and .0065: the bounds are more than four of them
    assert k1(log_ratio).mean().item() == pytest.approx(analytic, abs=0.03)
    assert 0.66 < k1(log_ratio).std().item() < 0.69
    assert k2(log_ratio).mean().item() == pytest.approx(0.8658, abs=0.03)
