"""Objectives by name and by dotted path."""

from pathlib import Path
from typing import Any

import pytest

from megarl.config.errors import RecipeError
from megarl.config.training import ObjectiveConfig
from megarl.objectives import GRPO, build_objective


def users_objective(clip_low: float, clip_high: float = 0.2) -> GRPO:
    """A user's factory."""
    return GRPO(clip_low, clip_high, 0.0)


def returns_no_objective(**options: Any) -> Any:
    """A user's mistake."""
    return options


def test_recipe_keys_reach_grpo() -> None:
    config = ObjectiveConfig(name="grpo", clip_low=0.1, clip_high=0.3, kl_coefficient=0.02)
    assert build_objective(config) == GRPO(0.1, 0.3, 0.02)


@pytest.mark.parametrize(("coefficient", "needed"), [(0.0, False), (0.001, True)])
def test_reference_is_needed_with_a_kl_term(coefficient: float, needed: bool) -> None:
    assert build_objective(ObjectiveConfig(kl_coefficient=coefficient)).needs_reference is needed


def test_dotted_path_gets_the_options() -> None:
    path = f"{__name__}.users_objective"
    assert build_objective(ObjectiveConfig(name=path, options={"clip_low": 0.1})) == GRPO(0.1, 0.2, 0.0)


@pytest.mark.parametrize("options", [{}, {"clip": 0.1}, {"clip_low": 0.1, "beta": 1}])
def test_options_that_the_factory_does_not_take(options: dict[str, float]) -> None:
    with pytest.raises(RecipeError, match=r"^rl\.objective\.options=.*does not fit .*users_objective"):
        build_objective(ObjectiveConfig(name=f"{__name__}.users_objective", options=options))


def test_a_factory_that_raises_on_import_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_broken_objective.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecipeError, match="ZeroDivisionError: division by zero"):
        build_objective(ObjectiveConfig(name="users_broken_objective.f"))


def test_a_factory_without_a_signature_is_called() -> None:
    with pytest.raises(RecipeError, match="returns no objective"):
        build_objective(ObjectiveConfig(name="builtins.dict"))


def test_what_is_no_objective_is_refused() -> None:
    with pytest.raises(RecipeError, match="returns no objective"):
        build_objective(ObjectiveConfig(name=f"{__name__}.returns_no_objective"))


@pytest.mark.parametrize("name", ["grop", "no_such_module.x", "json.no_such_name"])
def test_unknown_names_are_refused_with_the_key(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"rl\.objective\.name=\"?{name}"):
        build_objective(ObjectiveConfig(name=name))
