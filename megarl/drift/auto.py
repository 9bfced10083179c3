"""Which correction the measured drift asks for: one rule, over how far and how heavy-tailed the weights are.

The weights are those of tokens, w = e^D with D = log trainer - log rollout: what the corrections cut and cap. k-hat
alone would not do: it is the tail's shape, which rounding noise has too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from megarl.drift.pareto import RELIABLE_K

FLOOR_ESS_SHARE = 0.9999
"""ESS, as a share, of weights whose standard deviation is 1 % of their mean: ESS / N = 1 / (1 + its square)."""
HEAVY_SHARE = 1e-3
"""Share of tokens that one side finds twice as likely as the other, from which on they are no exceptions."""
LEAST_ESS_SHARE = 0.5
"""Below it, weights cost more than half of the sample."""
BULK = math.log(1.1)
"""Median of |D|, in nats, above which most tokens lie outside the ratios [1/1.1, 1.1]."""
CALM_STEPS = 5
"""Steps in a row that ask for less, after which the level falls by one."""


class Level(IntEnum):
    """Corrections in the order of their severity."""

    NONE = 0
    TIS = 1
    ICEPOP = 2
    GEOMETRIC = 3


@dataclass(frozen=True)
class Choice:
    """The correction of a step.

    Attributes:
        level: what is done.
        calm: steps in a row, this one included, that have asked for less.
        why: what the measures say, in words.
    """

    level: Level
    calm: int
    why: str


def choose(level: Level, calm: int, measured: Mapping[str, float]) -> Choice:
    """The step's correction: up at once, down by one after `CALM_STEPS` calm steps.

    Args:
        level: of the step before.
        calm: of the step before.
        measured: the step's measures, as `drift_metrics` names them.
    """
    if "abs_p50" not in measured:
        return Choice(level, calm, "no token has a log-prob by the engine")
    asked, why = asked_level(measured)
    if asked >= level:
        return Choice(asked, 0, why)
    if calm + 1 < CALM_STEPS:
        return Choice(level, calm + 1, why)
    return Choice(Level(level - 1), 0, f"{why}, for {CALM_STEPS} steps")


def asked_level(measured: Mapping[str, float]) -> tuple[Level, str]:
    """What the measures of one step ask for, and why."""
    ess, median = measured["token_ess_share"], measured["abs_p50"]
    far = measured["abs_above_ln2_share"]
    k_hat = measured.get("token_pareto_k")
    if median > BULK:
        return Level.GEOMETRIC, f"half of all tokens differ by more than {median:.3g} nats, above {BULK:.3g}"
    if ess >= FLOOR_ESS_SHARE and far == 0:
        return Level.NONE, f"the tokens' weights are worth {ess:.6g} of their number, at least {FLOOR_ESS_SHARE:g}"
    # most tokens are near 1 here, so that it is few that cost the sample
    if ess < LEAST_ESS_SHARE:
        return Level.ICEPOP, f"the tokens' weights are worth {ess:.3g} of their number, below {LEAST_ESS_SHARE:g}"
    if far > HEAVY_SHARE:
        return Level.ICEPOP, f"{far:.3g} of the tokens differ by more than a factor of 2, above {HEAVY_SHARE:g}"
    if k_hat is not None and k_hat > RELIABLE_K:
        return Level.ICEPOP, f"the tokens' weights have a k-hat of {k_hat:.3g}, above {RELIABLE_K:g}"
    tail = "no tail to fit" if k_hat is None else f"a k-hat of {k_hat:.3g}, at most {RELIABLE_K:g}"
    return Level.TIS, f"the tokens' weights are worth {ess:.5g} of their number and have {tail}"
