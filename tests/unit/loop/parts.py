"""A run of which only the recipe and the state exist: for what reads no other part of it."""

from dataclasses import fields
from typing import Any

from megarl.checkpoint.state import RunState
from megarl.config.schema import Recipe
from megarl.loop.run import Run


def run_without_parts(recipe: Recipe) -> Run:
    """The run; using any other part of it fails."""
    parts: dict[str, Any] = {field.name: None for field in fields(Run)}
    state = RunState(phase="rl", kl_coefficient=recipe.rl.kl.coefficient)
    return Run(**{**parts, "recipe": recipe, "state": state, "warned_of_entropy": False})
