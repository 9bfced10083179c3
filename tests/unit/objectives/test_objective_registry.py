"""Objectives by name and by dotted path."""

from typing import Any

import pytest

from megarl.config.errors import RecipeError
from megarl.config.training import ObjectiveConfig
from megarl.objectives import GRPO, build_objective


def returns_its_options(**options: Any) -> Any:
    """Stands for a user's factory."""
    return options


def test_recipe_keys_reach_grpo() -> None:
    config = ObjectiveConfig(name="grpo", clip_low=0.1, clip_high=0.3, kl_coefficient=0.02)
    assert build_objective(config) == GRPO(0.1, 0.3, 0.02)


@pytest.mark.parametrize(("coefficient", "needed"), [(0.0, False), (0.001, True)])
def test_reference_is_needed_with_a_kl_term(coefficient: float, needed: bool) -> None:
    assert build_objective(ObjectiveConfig(kl_coefficient=coefficient)).needs_reference is needed


def test_dotted_path_gets_the_options() -> None:
    path = f"{returns_its_options.__module__}.returns_its_options"
    built: Any = build_objective(ObjectiveConfig(name=path, options={"a": 1}))
    assert built == {"a": 1}


@pytest.mark.parametrize("name", ["grop", "no_such_module.x", "json.no_such_name"])
def test_unknown_names_are_refused_with_the_key(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"rl\.objective\.name=\"?{name}"):
        build_objective(ObjectiveConfig(name=name))
