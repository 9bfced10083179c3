"""Pareto k-hat of importance weights: how heavy their tail is (Vehtari et al. 2015, 1507.02646).

The largest weights are fitted with a generalised Pareto distribution; its shape k says which moments of the weights
exist: all below 1/k. Above 0.7 no sample of a workable size makes their mean reliable. k is about the tail's shape and
not its size: weights that all lie within 1e-6 of 1 have one too.
"""

import math

import torch
from torch import Tensor

RELIABLE_K = 0.7
"""Largest k-hat of weights that can be trusted (1507.02646)."""
LEAST_TAIL = 5
"""Weights that a fit needs; so that 21 are the fewest that have a tail."""
_PRIOR_K, _PRIOR_WEIGHTS = 0.5, 10
"""k-hat is drawn towards this value as if by so many weights more (1507.02646)."""
_PRIOR_SCALE = 3
"""Of Zhang and Stephens' prior on the scale, in first quartiles."""


def pareto_k(log_weights_N: Tensor) -> float | None:
    """k-hat of the weights e^log_weights, from their logs alone, so that none overflows or vanishes.

    Args:
        log_weights_N: finite, in nats; a constant may be missing from all.

    Returns:
        k-hat; None where fewer than 5 weights are above the one that the tail begins behind, as with fewer than 21
        weights, or weights that are all the same.
    """
    count = len(log_weights_N)
    tail = math.ceil(min(count / 5, 3 * math.sqrt(count)))
    if tail < LEAST_TAIL:
        return None
    largest = log_weights_N.double().topk(tail + 1).values.flip(0)
    behind, above = largest[0], largest[1:]
    above = above[above > behind]
    if len(above) < LEAST_TAIL:
        return None
    # log(w - w0), in order as the weights are
    log_excess_M = above + torch.log(-torch.expm1(behind - above))
    shape = generalised_pareto_shape(log_excess_M)
    size = len(above)
    return (size * shape + _PRIOR_WEIGHTS * _PRIOR_K) / (size + _PRIOR_WEIGHTS)


def generalised_pareto_shape(log_excess_M: Tensor) -> float:
    """Shape of the generalised Pareto distribution of excesses x (Zhang and Stephens 2009, Technometrics 51:316).

    Of the distribution's theta = k / scale they take the posterior mean over a grid, and of that the shape. With
    x_q the first quartile and x_M the largest, the grid is -theta = c / (3 x_q) - 1 / x_M, c > 0, so that c alone is
    averaged and x stays a logarithm throughout. Positive shapes are heavy tails.

    Args:
        log_excess_M: log x, fp64, ascending, at least 5; not all alike.
    """
    size = len(log_excess_M)
    grid = 30 + math.isqrt(size)
    step_G = torch.arange(1, grid + 1, dtype=torch.float64, device=log_excess_M.device) - 0.5
    c_G = torch.sqrt(grid / step_G) - 1
    log_c_G = torch.log(c_G / _PRIOR_SCALE)
    below_largest_M = log_excess_M - log_excess_M[-1]
    below_quartile_M = log_excess_M - log_excess_M[math.floor(size / 4 + 0.5) - 1]
    # log(1 - x / x_M), minus infinity at the largest
    rest_M = torch.log(-torch.expm1(below_largest_M))

    def shape(log_c: Tensor) -> Tensor:
        """Mean of log(1 - theta x) at -theta = c / (3 x_q) - 1 / x_M."""
        return torch.logaddexp(rest_M, below_quartile_M + log_c[..., None]).mean(dim=-1)

    shape_G = shape(log_c_G)
    # log |theta x_M|, of e^u - 1 on either side of 0
    u_G = below_quartile_M[-1] + log_c_G
    log_theta_G = torch.where(u_G > 0, u_G, 0.0) + torch.log(-torch.expm1(-u_G.abs()))
    profile_G = size * (log_theta_G - shape_G.abs().log() - shape_G - 1)
    # a grid point at theta = 0 exactly has no profile likelihood
    posterior_G = torch.nan_to_num(profile_G, nan=-math.inf).softmax(dim=0)
    return shape(torch.log((posterior_G * c_G).sum() / _PRIOR_SCALE)).item()
