"""A run of which only the recipe, the state and the parts given exist: for what reads no other."""

from dataclasses import fields
from typing import Any

from megarl.checkpoint.state import RunState
from megarl.config.schema import Recipe
from megarl.loop.run import Run


def run_without_parts(recipe: Recipe, **given: Any) -> Run:
    """The run; using a part that is not given fails."""
    parts: dict[str, Any] = {field.name: None for field in fields(Run)} | given
    state = RunState(phase="rl", kl_coefficient=recipe.rl.kl.coefficient)
    return Run(**{**parts, "recipe": recipe, "state": state, "warned_of_entropy": False})
