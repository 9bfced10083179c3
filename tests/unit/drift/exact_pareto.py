"""k-hat as the papers write it, on the weights themselves, in decimal arithmetic of 40 digits."""

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext


def exact_pareto_k(log_weights: Sequence[float]) -> float | None:
    """Vehtari et al. (1507.02646) with the fit of Zhang and Stephens (2009); None for a tail of under 5."""
    count = len(log_weights)
    size = math.ceil(min(count / 5, 3 * math.sqrt(count)))
    if size < 5:
        return None
    with localcontext() as context:
        # exponents of weights that are e^(10^6) apart
        context.prec, context.Emax, context.Emin = 40, 10**9, -(10**9)
        behind, *tail = [Decimal(value).exp() for value in sorted(log_weights)[count - size - 1 :]]
        excess = [weight - behind for weight in tail if weight > behind]
        if len(excess) < 5:
            return None
        shape = _zhang_stephens(excess)
        return float((len(excess) * shape + 5) / (len(excess) + 10))


def _zhang_stephens(x: list[Decimal]) -> Decimal:
    n = len(x)
    m = 30 + math.isqrt(n)
    quartile = x[math.floor(n / 4 + 0.5) - 1]
    thetas = [1 / x[-1] + (1 - (m / (Decimal(j) - Decimal("0.5"))).sqrt()) / (3 * quartile) for j in range(1, m + 1)]
    shapes = [_mean_log(theta, x) for theta in thetas]
    profile = [n * ((-theta / k).ln() - k - 1) for theta, k in zip(thetas, shapes, strict=True)]
    likelihood = [(value - max(profile)).exp() for value in profile]
    theta = sum(t * each for t, each in zip(thetas, likelihood, strict=True)) / sum(likelihood)
    return _mean_log(theta, x)


def _mean_log(theta: Decimal, x: list[Decimal]) -> Decimal:
    return sum(((1 - theta * value).ln() for value in x), Decimal(0)) / len(x)
