import dataclasses
import json
import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from megarl.evaluate.pass_at_k import pass_at_k, pass_at_k_curve


def test_the_worked_value() -> None:
    assert pass_at_k(5, [1], [3]).tolist() == [[0.6]]


@pytest.mark.parametrize("samples", range(1, 9))
def test_against_every_subset(samples: int) -> None:
    ks = range(1, samples + 1)
    estimates = pass_at_k(samples, range(samples + 1), list(ks))
    for correct in range(samples + 1):
        right = [index < correct for index in range(samples)]
        for k in ks:
            draws = list(combinations(right, k))
            assert estimates[correct, k - 1] == float(Fraction(sum(map(any, draws)), len(draws)))


def test_no_digit_is_lost_at_large_n() -> None:
    survivors = math.prod(Fraction(4096 - 3 - i, 4096 - i) for i in range(512))
    assert pass_at_k(4096, [3], [512])[0, 0] == float(1 - survivors)
    # 1 - (1 - 1e-6) style cancellation would lose this one.
    assert pass_at_k(10**6, [1], [1])[0, 0] == 1e-6


def test_shape_and_order_follow_the_arguments() -> None:
    estimates = pass_at_k(4, np.array([4, 0, 2, 0]), [4, 1])
    assert estimates.dtype == np.float64
    assert estimates.tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 0.5], [0.0, 0.0]]


def test_the_interval_is_the_stated_formula() -> None:
    curve = pass_at_k_curve(4, [0, 1, 2, 3], [1, 2])
    estimates = [0.0, 0.25, 0.5, 0.75]
    error = math.sqrt(sum((p - 0.375) ** 2 for p in estimates) / 3) / 2
    assert curve.ks == (1, 2)
    assert curve.pass_at_k[0] == pytest.approx(0.375)
    assert curve.standard_error[0] == pytest.approx(error)
    assert curve.low[0] == pytest.approx(0.375 - 1.959964 * error)
    assert curve.high[0] == pytest.approx(0.375 + 1.959964 * error)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    # 400 experiments at 95 %: the share has standard deviation .011; the normal interval of 64 problems is a
    # little short, by less than .01. Five deviations leave a false alarm below one in a million.
    generator = np.random.default_rng(0)
    truth = 0.4  # mean of the Beta(2, 3) that the problems' chances come from
    covered = 0
    for _ in range(400):
        correct = generator.binomial(8, generator.beta(2, 3, size=64))
        curve = pass_at_k_curve(8, correct, [1])
        covered += curve.low[0] <= truth <= curve.high[0]
    assert 0.88 <= covered / 400 <= 1.0
    assert covered < 400


def test_one_problem_has_no_spread_and_is_still_json() -> None:
    curve = pass_at_k_curve(2, [1], [1])
    assert (curve.standard_error, curve.low, curve.high) == ((None,), (0.0,), (1.0,))
    assert json.loads(json.dumps(dataclasses.asdict(curve), allow_nan=False))["pass_at_k"] == [0.5]


def test_the_interval_stays_in_range() -> None:
    curve = pass_at_k_curve(2, [0, 0, 0, 1], [1])
    assert curve.low == (0.0,)
    assert 0 < curve.high[0] < 1


@pytest.mark.parametrize(
    ("correct", "ks", "message"),
    [
        ([1], [5], "pass@5"),
        ([1], [0], "pass@0"),
        ([5], [1], "0, 4"),
        ([-1], [1], "0, 4"),
        ([], [1], "shape"),
        ([0.5], [1], "float64"),
        ([[1]], [1], "shape"),
    ],
)
def test_out_of_range_is_refused(correct: list[int], ks: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pass_at_k(4, correct, ks)
