"""Every objective token by token in Python floats, with the derivatives worked out by hand, and random batches."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BOUND = 20.0


@dataclass(frozen=True)
class Sample:
    """What an objective reads of one trained token; log-probs in nats."""

    log_prob: float
    old: float
    rollout: float
    advantage: float
    selected: bool


@dataclass(frozen=True)
class Token:
    """Loss of one token, and its derivative by the current policy's log-prob."""

    loss: float
    gradient: float


Row = Callable[[Sequence[Sample]], list[Token]]
"""The trained tokens of one response to their losses."""


def ratio(log_ratio: float) -> tuple[float, float]:
    """e^x with x kept within the documented bound, and the derivative of that."""
    value = math.exp(max(-BOUND, min(BOUND, log_ratio)))
    return value, value if abs(log_ratio) <= BOUND else 0.0


def surrogate(r: float, slope: float, advantage: float, low: float, high: float) -> Token:
    """PPO: max(-A r, -A clip(r, 1 - low, 1 + high))."""
    unclipped, clipped = -advantage * r, -advantage * min(max(r, 1 - low), 1 + high)
    return Token(unclipped, -advantage * slope) if unclipped >= clipped else Token(clipped, 0.0)


def each(token: Callable[[Sample], Token]) -> Row:
    """An objective that knows no neighbours."""
    return lambda row: [token(sample) for sample in row]


def ppo(low: float, high: float, dual: float = math.inf) -> Row:
    def token(s: Sample) -> Token:
        term = surrogate(*ratio(s.log_prob - s.old), s.advantage, low, high)
        return Token(-s.advantage * dual, 0.0) if s.advantage < 0 and term.loss > -s.advantage * dual else term

    return each(token)


def gspo(low: float, high: float) -> Row:
    def row(samples: Sequence[Sample]) -> list[Token]:
        mean = math.fsum(s.log_prob - s.old for s in samples) / len(samples)
        value = math.exp(max(-BOUND, min(BOUND, mean)))
        return [surrogate(value, value, s.advantage, low, high) for s in samples]

    return row


def cispo(low: float, high: float) -> Row:
    def token(s: Sample) -> Token:
        weight = min(max(ratio(s.log_prob - s.old)[0], 1 - low), 1 + high)
        return Token(-weight * s.advantage * s.log_prob, -weight * s.advantage)

    return each(token)


def k2_5(low: float, high: float, tau: float) -> Row:
    def token(s: Sample) -> Token:
        x = s.log_prob - s.old
        r, slope = ratio(x)
        keep = math.log(low) <= x <= math.log(high)
        return Token(-keep * r * s.advantage + tau * x * x, -keep * slope * s.advantage + 2 * tau * x)

    return each(token)


def dppo_tv(delta: float) -> Row:
    def token(s: Sample) -> Token:
        moved = math.exp(s.log_prob) - math.exp(s.rollout)
        keep = moved <= delta if s.advantage > 0 else moved >= -delta
        r, slope = ratio(s.log_prob - s.rollout)
        return Token(-keep * r * s.advantage, -keep * slope * s.advantage)

    return each(token)


def decoupled_ppo(low: float, high: float) -> Row:
    def token(s: Sample) -> Token:
        weight = ratio(s.old - s.rollout)[0]
        term = surrogate(*ratio(s.log_prob - s.old), s.advantage, low, high)
        return Token(weight * term.loss, weight * term.gradient)

    return each(token)


def clip_cov(low: float, high: float) -> Row:
    def token(s: Sample) -> Token:
        term = surrogate(*ratio(s.log_prob - s.old), s.advantage, low, high)
        return Token(term.loss, 0.0 if s.selected else term.gradient)

    return each(token)


def kl_cov(beta: float) -> Row:
    def token(s: Sample) -> Token:
        x = s.log_prob - s.old
        r, slope = ratio(x)
        pull = beta * s.selected
        return Token(-s.advantage * r + pull * abs(x), -s.advantage * slope + pull * ((x > 0) - (x < 0)))

    return each(token)


def reinforce() -> Row:
    return each(lambda s: Token(-s.advantage * s.log_prob, -s.advantage))


def ragged_mask(rows: int, width: int, seed: int) -> Tensor:
    """Bool [rows, width]: each row a stretch of its own, the first row empty, the second full."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(rows, width, dtype=torch.bool)
    for row in range(rows):
        begin, end = sorted(torch.randint(0, width + 1, (2,), generator=generator).tolist())
        mask[row, begin:end] = True
    mask[0], mask[1] = False, True
    return mask


def uniform(low: float, high: float, shape: tuple[int, ...], seed: int) -> Tensor:
    """float64 numbers in [low, high)."""
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * (high - low) + low
