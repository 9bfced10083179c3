"""Unbiased pass@k and its spread over problems."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Z_95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True)
class PassAtK:
    """pass@k averaged over problems, one entry a k. `dataclasses.asdict` of it is ready for JSON.

    Attributes:
        ks: the k, in the order asked for.
        pass_at_k: mean of the unbiased estimates, in [0, 1].
        standard_error: of that mean, over problems; None where there is one problem only.
        low: lower end of the 95 % interval, in [0, 1].
        high: upper end of the 95 % interval, in [0, 1].
    """

    ks: tuple[int, ...]
    pass_at_k: tuple[float, ...]
    standard_error: tuple[float | None, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def pass_at_k(samples: int, correct: ArrayLike, ks: Sequence[int]) -> NDArray[np.float64]:
    """The unbiased estimate 1 - C(n-c, k) / C(n, k) of every problem, for every k.

    The binomials are exact integers and are divided once, so every entry is the float64 nearest to the true
    value, at any n. Source: Chen et al. 2021, arXiv 2107.03374, equation 1.

    Args:
        samples: n, responses drawn for each problem.
        correct: c, right responses of each problem; integers, shape [problems].
        ks: the k of pass@k, each in [1, n].

    Returns:
        float64, shape [problems, len(ks)], in [0, 1].

    Raises:
        ValueError: a k or a c is out of range, or `correct` is not a row of integers.
    """
    counts = np.asarray(correct)
    if counts.ndim != 1 or counts.size == 0 or not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(f"correct must be integers of shape [problems], got {counts.dtype} of shape {counts.shape}.")
    if counts.min() < 0 or counts.max() > samples:
        raise ValueError(f"correct must lie in [0, {samples}], got {counts.min()} to {counts.max()}.")
    for k in ks:
        if not 1 <= k <= samples:
            raise ValueError(f"pass@{k} needs 1 <= k <= {samples}, the samples of a problem.")
    # Few counts differ, so big-integer work is done once for each of them.
    distinct, where = np.unique(counts, return_inverse=True)
    table = np.array([[_exact(samples, int(c), k) for k in ks] for c in distinct], dtype=np.float64)
    return table.reshape(len(distinct), len(ks))[where]


def pass_at_k_curve(samples: int, correct: ArrayLike, ks: Sequence[int]) -> PassAtK:
    """pass@k over a set of problems, with a 95 % interval and no bootstrap.

    With p_i the unbiased estimate of problem i of P, the mean is sum(p_i) / P, its standard error is
    sqrt(sum((p_i - mean)^2) / (P - 1)) / sqrt(P), and the interval is mean +- 1.96 standard errors, cut to
    [0, 1]. It covers both the choice of problems and the sampling of responses. It has no width where all
    problems have the same estimate. One problem says nothing of the spread: it has no standard error, and its
    interval is [0, 1].

    Args:
        samples: n, responses drawn for each problem.
        correct: c, right responses of each problem; integers, shape [problems].
        ks: the k of pass@k, each in [1, n].

    Raises:
        ValueError: as `pass_at_k`.
    """
    estimates = pass_at_k(samples, correct, ks)
    problems = len(estimates)
    mean = estimates.mean(axis=0)
    error = estimates.std(axis=0, ddof=1) / math.sqrt(problems) if problems > 1 else np.full_like(mean, np.inf)
    return PassAtK(
        ks=tuple(ks),
        pass_at_k=tuple(mean.tolist()),
        standard_error=tuple(None if math.isinf(value) else value for value in error.tolist()),
        low=tuple(np.clip(mean - Z_95 * error, 0.0, 1.0).tolist()),
        high=tuple(np.clip(mean + Z_95 * error, 0.0, 1.0).tolist()),
    )


def _exact(n: int, c: int, k: int) -> float:
    total = math.comb(n, k)
    return (total - math.comb(n - c, k)) / total
