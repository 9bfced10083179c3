"""Bounds on measures of drift: which of them a step has crossed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megarl.config.drift_names import bad_side


@dataclass(frozen=True)
class Crossing:
    """A measure beyond its bound.

    Attributes:
        name: of the measure, without `drift/`.
        value: what was measured.
        bound: the largest value that passes, the smallest, or both, as the measure has it.
    """

    name: str
    value: float
    bound: float | list[float]

    def __str__(self) -> str:
        """In words, as the end of 'drift/...'."""
        if isinstance(self.bound, list):
            return f"{self.name}={self.value:.4g} is outside [{self.bound[0]:g}, {self.bound[1]:g}]"
        side = "above" if bad_side(self.name) == "high" else "below"
        return f"{self.name}={self.value:.4g} is {side} {self.bound:g}"


def crossings(bounds: Mapping[str, Any], measured: Mapping[str, float]) -> list[Crossing]:
    """The bounds that are crossed, in their order; a measure at its bound has not crossed it.

    Args:
        bounds: by measure: a number, or [smallest, largest] for a measure that is bad on both sides.
        measured: the step's measures; one that is not there crosses nothing.
    """
    found = [Crossing(name, measured[name], bound) for name, bound in bounds.items() if name in measured]
    return [crossing for crossing in found if _is_beyond(crossing)]


def _is_beyond(crossing: Crossing) -> bool:
    if isinstance(crossing.bound, list):
        return not crossing.bound[0] <= crossing.value <= crossing.bound[1]
    if bad_side(crossing.name) == "low":
        return crossing.value < crossing.bound
    return crossing.value > crossing.bound
