"""k1, k2 and k3: values, gradients, and the estimates that a known pair of distributions gives."""

import math
from itertools import pairwise

import pytest
import torch

from megarl.objectives.kl import COEFFICIENTS, ESTIMATORS, k1, k2, k3
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


ANALYTIC = math.log(5) + (0.04 + 0.01) / 2 - 0.5
"""KL(Q, P) of Q = N(.1, .2) and P = N(0, 1)."""


def log_ratios(draws: int, seed: int) -> torch.Tensor:
    """log Q - log P at samples of Q, float64."""
    policy, reference = torch.distributions.Normal(0.1, 0.2), torch.distributions.Normal(0.0, 1.0)
    samples = 0.1 + 0.2 * torch.randn(draws, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return policy.log_prob(samples) - reference.log_prob(samples)


def test_estimates_of_a_known_divergence() -> None:
    assert pytest.approx(1.13444, abs=1e-5) == ANALYTIC
    x = log_ratios(10_000, 0)
    # standard errors .0068 and .0065: the bounds are more than four of them
    assert k1(x).mean().item() == pytest.approx(ANALYTIC, abs=0.03)
    assert k1(x).std().item() == pytest.approx(0.675, abs=0.03)
    assert k2(x).mean().item() == pytest.approx(0.8658, abs=0.03)


def test_k3_has_no_variance_here_and_its_sample_mean_is_too_low() -> None:
    pooled = torch.stack([log_ratios(10_000, seed) for seed in range(200)])
    means = {name: estimator(pooled).mean(dim=1) for name, estimator in {"k1": k1, "k3": k3}.items()}
    # one sample's has a standard error of .01; the analytic value is sqrt(2 * .48^2 + .02^2)
    assert 0.67 < k1(pooled).std(dim=1).mean().item() < 0.68
    # an unbiased estimator with a variance is below in half of all seeds; k3's mean lives on draws that never come
    assert 70 <= int((means["k1"] < ANALYTIC).sum()) <= 130
    assert int((means["k3"] < ANALYTIC).sum()) >= 175
    # E[k3^2] holds the integral of p^2 / q, whose integrand grows with |x| as e^(11.5 x^2): cut ever wider, it diverges
    grid = torch.linspace(-6, 6, 120_001, dtype=torch.float64)
    policy, reference = torch.distributions.Normal(0.1, 0.2), torch.distributions.Normal(0.0, 1.0)
    integrand = (2 * reference.log_prob(grid) - policy.log_prob(grid)).exp() * 1e-4
    within = [integrand[grid.abs() <= bound].sum().item() for bound in (1.0, 2.0, 3.0, 4.0)]
    assert all(wider > 1e6 * narrower for narrower, wider in pairwise(within))
    # and in samples: the larger the sample, the larger its variance, where k1's stays
    variances = {n: k3(pooled.view(-1, n)).var(dim=1).median().item() for n in (100, 10_000, 2_000_000)}
    assert variances[100] < 0.1 * variances[10_000] < 0.01 * variances[2_000_000]
    assert k1(pooled).var().item() == pytest.approx(k1(pooled[0]).var().item(), rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_estimators_and_coefficients_are_finite_far_out(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([40.0, -40.0, 1e4, -1e4], dtype=dtype, requires_grad=True)
    value = ESTIMATORS[name](x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert value.isfinite().all() and gradient.isfinite().all() and COEFFICIENTS[name](x).isfinite().all()
    # k3 is left at x = -20, where e^20 is already more than a batch can bear
    wanted = {"k1": [1.0] * 4, "k2": [40.0, -40.0, 1e4, -1e4], "k3": [1.0, 0.0, 1.0, 0.0]}[name]
    torch.testing.assert_close(gradient, torch.tensor(wanted, dtype=dtype))
    if name == "k3":
        bounded = math.exp(20) - 21
        torch.testing.assert_close(value, torch.tensor([39.0, bounded, 1e4 - 1, bounded], dtype=dtype))


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_coefficients_are_the_gradients(name: str) -> None:
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ESTIMATORS[name](x).sum(), x)
    torch.testing.assert_close(COEFFICIENTS[name](X), gradient, rtol=1e-12, atol=1e-15)
