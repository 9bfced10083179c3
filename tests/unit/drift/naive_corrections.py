"""Corrections in Python floats, response by response."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from megarl.drift.corrections import TIS, IcePop, RejectGeometric, RejectK3, RejectSequences, RejectTokens, Rule, Veto

NaiveRule = Callable[[Sequence[float]], list[bool]]
"""Log-ratios of a response's usable tokens to which of them stay."""


def whole(stays: Callable[[Sequence[float]], bool]) -> NaiveRule:
    return lambda deltas: [stays(deltas)] * len(deltas)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


# bands that keep some and drop some of the batches in these tests
RULES: dict[str, tuple[Rule, NaiveRule]] = {
    "token": (RejectTokens(0.5, 2.0), lambda deltas: [0.5 <= math.exp(d) <= 2.0 for d in deltas]),
    "sequence": (RejectSequences(0.6, 1.6), whole(lambda deltas: 0.6 <= math.exp(math.fsum(deltas)) <= 1.6)),
    "geometric": (RejectGeometric(0.85, 1.15), whole(lambda deltas: 0.85 <= math.exp(mean(deltas)) <= 1.15)),
    "k3": (RejectK3(0.08), whole(lambda deltas: mean([math.exp(d) - 1 - d for d in deltas]) <= 0.08)),
    "veto": (Veto(0.5), whole(lambda deltas: all(math.exp(d) >= 0.5 for d in deltas))),
}
WEIGHTINGS: dict[str, tuple[TIS | IcePop | None, Callable[[float], float]]] = {
    "none": (None, lambda delta: 1.0),
    "tis": (TIS(1.3), lambda delta: min(math.exp(delta), 1.3)),
    "icepop": (IcePop(0.6, 1.8), lambda delta: math.exp(delta) if 0.6 <= math.exp(delta) <= 1.8 else 0.0),
}


def corrected(
    trainer: Tensor, rollout: Tensor, mask: Tensor, rules: Sequence[str], weighting: str
) -> tuple[Tensor, Tensor]:
    """Weights (float64, 0 outside) and the bool mask of what stays."""
    weights, keep = torch.zeros(mask.shape, dtype=torch.float64), torch.zeros_like(mask)
    for row in range(len(mask)):
        columns = [
            t
            for t in mask[row].nonzero()[:, 0].tolist()
            if math.isfinite(trainer[row, t]) and math.isfinite(rollout[row, t])
        ]
        deltas = [trainer[row, t].item() - rollout[row, t].item() for t in columns]
        verdicts = [RULES[name][1](deltas) for name in rules if deltas]
        for i, t in enumerate(columns):
            if all(verdict[i] for verdict in verdicts):
                keep[row, t] = True
                weights[row, t] = WEIGHTINGS[weighting][1](deltas[i])
    return weights, keep
