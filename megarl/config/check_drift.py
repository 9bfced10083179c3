"""Checks of the bounds on drift: measures that there are, and bounds that something can cross."""

from typing import Any

from megarl.config.check_correction import CORRECTS_ITSELF
from megarl.config.drift_names import COUNTS, bad_side, boundable
from megarl.config.names import nearest
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe

ACTIONS = ("warn", "skip_update", "stop")


def bounds_are_of_measures(recipe: Recipe) -> None:
    """Each bound is of a measure, and of the form that the measure takes."""
    for action in ACTIONS:
        for name, bound in getattr(recipe.drift, action).items():
            _check_bound(f"drift.{action}[{name}]", name, bound)


def _check_bound(path: str, name: str, bound: Any) -> None:
    side = bad_side(name)
    if side is None:
        if name in COUNTS:
            raise refusal(path, bound, "is a bound on a count, which is no drift", "take it out")
        guess = nearest(name.removeprefix("drift/"), boundable())
        fix = f"did you mean {guess}?" if guess else "name a measure of docs/drift.md"
        raise refusal(path, bound, "is of no measure of drift", fix)
    if side == "both":
        if not (isinstance(bound, list) and len(bound) == 2 and all(map(_is_number, bound)) and bound[0] < bound[1]):
            reason = "is no band, and this measure is bad on either side"
            raise refusal(
                path, bound, reason, "give the smallest and the largest value that pass, such as [-0.01, 0.01]"
            )
    elif not _is_number(bound):
        what = "largest" if side == "high" else "smallest"
        raise refusal(path, bound, "is no number", f"give the {what} value that passes")
    elif side == "high" and bound < 0 and not name.endswith("pareto_k"):
        raise refusal(path, bound, "is crossed at every step: the measure is never below 0", "give at least 0")
    elif side == "low" and not 0 <= bound <= 1:
        raise refusal(path, bound, "is no share or correlation", "give 0 to 1")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def auto_stands_alone(recipe: Recipe) -> None:
    """drift.correction=auto takes rl.correction's place, around an objective that can take a correction."""
    if recipe.drift.correction != "auto":
        return
    if recipe.rl.correction.mode != "none":
        reason = f"picks the correction, and rl.correction.mode={recipe.rl.correction.mode} gives one"
        raise refusal("drift.correction", "auto", reason, "set rl.correction.mode=none or drift.correction=given")
    name = recipe.rl.objective.name
    if name in CORRECTS_ITSELF:
        reason = f"would correct a second time what rl.objective.name={name} corrects by its own ratio to the engine"
        raise refusal("drift.correction", "auto", reason, "set drift.correction=given")


DRIFT_CHECKS = (bounds_are_of_measures, auto_stands_alone)
