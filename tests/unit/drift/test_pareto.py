"""k-hat against exact arithmetic on the weights, and against distributions whose tail is known."""

import math

import pytest
import torch

from megarl.drift.pareto import RELIABLE_K, pareto_k
from tests.unit.drift.exact_pareto import exact_pareto_k
from tests.unit.objectives.reference import uniform


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.5, 3.0, 40.0, 1e5])
@pytest.mark.parametrize("count", [21, 26, 100, 400])
def test_k_hat_is_that_of_exact_arithmetic(scale: float, count: int) -> None:
    """From weights that are nearly alike to some that are e^(2 * 10^5) apart."""
    log_weights = uniform(-scale, scale, (count,), count)
    wanted = exact_pareto_k(log_weights.tolist())
    assert wanted is not None
    assert pareto_k(log_weights) == pytest.approx(wanted, rel=1e-9)


def test_a_constant_factor_changes_nothing() -> None:
    log_weights = uniform(-2, 2, (200,), 1)
    shifted = pareto_k(log_weights + 1e4)
    assert shifted == pytest.approx(pareto_k(log_weights), rel=1e-9)


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.7, 1.0, 2.0])
def test_the_tail_of_a_pareto_distribution_is_found(shape: float) -> None:
    """w = U^-k has shape k. A fit's standard deviation is about (1 + k) / sqrt(M), its bias of order (1 + k) / M.

    The prior pulls on it by |k - .5| 10 / (M + 10).
    """
    count, trials = 4000, 40
    tail = math.ceil(3 * math.sqrt(count))
    found = [pareto_k(-shape * uniform(0, 1, (count,), seed).log()) for seed in range(trials)]
    mean = sum(value for value in found if value is not None) / trials
    bias = abs(shape - 0.5) * 10 / (tail + 10) + (1 + shape) / tail
    assert mean == pytest.approx(shape, abs=bias + 4 * (1 + shape) / math.sqrt(tail * trials))


def test_bounded_weights_are_reliable_and_heavy_ones_are_not() -> None:
    bounded, heavy = pareto_k(uniform(0, 0.1, (1000,), 3)), pareto_k(-2 * uniform(0, 1, (1000,), 4).log())
    assert bounded is not None and heavy is not None
    assert bounded < RELIABLE_K < heavy


@pytest.mark.parametrize("log_weights", [[], [0.0] * 3, [0.5] * 1000, [*range(20)], [0.0] * 997 + [1.0, 2.0, 3.0]])
def test_what_has_no_tail_has_no_k_hat(log_weights: list[float]) -> None:
    assert pareto_k(torch.tensor(log_weights, dtype=torch.float64)) is None
    assert exact_pareto_k(log_weights) is None
