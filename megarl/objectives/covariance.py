"""Tokens by their covariance of log-prob and advantage (Cui et al. 2025, 2505.22617, section 4.2).

Over the N trained tokens of an update batch, with log pi the log-prob of the sampled token:

    Cov(y_i) = (log pi(y_i) - mean_j log pi(y_j)) (A(y_i) - mean_j A(y_j))

Its mean tells where the entropy goes: an update of rate lr changes it by about -lr Cov(log pi, A) (theorem 2, of the
natural policy gradient). Few tokens hold most of it, and a selection finds them. Everything here is formed once, on
the whole update batch and before its update: on a micro-batch or on one rank's share the means and the ranks of tokens
would be others. The log-probs are the old ones, of the trainer before the step: in a step's first update they are the
current ones.
"""

import hashlib

import torch
from torch import Tensor

from megarl.objectives.masked import masked


def token_covariance(log_probs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Cov of each trained token, in nats times the advantage's unit.

    Args:
        log_probs_BT: log-probs of the tokens, in nats.
        advantages_BT: their advantages.
        mask_BT: bool, the trained tokens. What the others hold is never read.

    Returns:
        fp64 [B, T], 0 outside the mask; 0 for a token that is alone.
    """
    count = mask_BT.sum().clamp(min=1)
    centred = []
    for values_BT in (log_probs_BT.detach(), advantages_BT.detach()):
        trained_BT = masked(values_BT.double(), mask_BT)
        centred.append(masked(trained_BT - trained_BT.sum() / count, mask_BT))
    return centred[0] * centred[1]


def select_largest(covariance_BT: Tensor, mask_BT: Tensor, share: float) -> Tensor:
    """The floor(share * N) trained tokens of the largest covariance, at least one; of equal ones the earlier.

    Returns:
        bool [B, T], False outside the mask; nothing where no token is trained.
    """
    return _first(-covariance_BT[mask_BT], quota(mask_BT, share), mask_BT)


def select_between(
    covariance_BT: Tensor, mask_BT: Tensor, low: float, high: float, share: float, generator: torch.Generator
) -> Tensor:
    """floor(share * N) trained tokens, at least one, drawn evenly from those with low <= Cov <= high.

    Args:
        covariance_BT: see `token_covariance`.
        mask_BT: bool, the trained tokens.
        low: smallest covariance that is drawn from.
        high: largest covariance that is drawn from.
        share: of the N trained tokens, those inside the band or not.
        generator: on the CPU; gives one number a trained token, whatever the band, so that each token keeps its own.

    Returns:
        bool [B, T]: all inside the band where they are fewer; nothing where there are none.
    """
    covariance_N = covariance_BT[mask_BT]
    inside_N = (covariance_N >= low) & (covariance_N <= high)
    draws_N = torch.rand(len(covariance_N), dtype=torch.float64, generator=generator).to(mask_BT.device)
    wanted = min(quota(mask_BT, share), int(inside_N.sum()))
    return _first(draws_N.masked_fill(~inside_N, torch.inf), wanted, mask_BT)


def quota(mask_BT: Tensor, share: float) -> int:
    """Tokens that a share of the trained ones is: rounded down, but one at least, as in the authors' code."""
    trained = int(mask_BT.sum())
    return min(max(int(share * trained), 1), trained)


def named_generator(name: str) -> torch.Generator:
    """A generator on the CPU whose numbers depend on the name alone."""
    digest = hashlib.sha256(name.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def _first(order_N: Tensor, count: int, mask_BT: Tensor) -> Tensor:
    """The `count` trained tokens that come first in that order; a stable sort settles ties by position."""
    chosen_N = torch.zeros(len(order_N), dtype=torch.bool, device=mask_BT.device)
    chosen_N[order_N.argsort(stable=True)[:count]] = True
    return torch.zeros_like(mask_BT).masked_scatter(mask_BT, chosen_N)
