"""Objectives by name and by dotted path."""

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from megarl.config.errors import RecipeError
from megarl.config.names import KNOWN_ADVANTAGES, OBJECTIVE_KEYS
from megarl.config.objective import KLConfig, ObjectiveConfig
from megarl.objectives import ADVANTAGES, GRPO, K25, OBJECTIVES, PPO, ClipCov, KLCov, Selects, build_objective
from megarl.objectives.checked import CheckedObjective
from megarl.objectives.kl import COEFFICIENTS, ESTIMATORS
from megarl.objectives.normalisation import MODES


def users_objective(clip_low: float, clip_high: float = 0.2) -> GRPO:
    """A user's factory."""
    return GRPO(clip_low, clip_high)


def returns_no_objective(**options: Any) -> Any:
    """A user's mistake."""
    return options


def test_recipe_names_are_those_of_the_registries() -> None:
    assert tuple(OBJECTIVES) == tuple(OBJECTIVE_KEYS)
    # gae needs a critic's values, which no other estimator has: it is not one of these functions
    assert (*ADVANTAGES, "gae") == KNOWN_ADVANTAGES
    choices = {f.name: f.metadata["choices"] for f in fields(ObjectiveConfig) if f.metadata.get("choices")}
    assert choices == {"normalisation": MODES}
    estimator = next(f for f in fields(KLConfig) if f.name == "estimator")
    assert estimator.metadata["choices"] == (*ESTIMATORS, "full")
    assert tuple(ESTIMATORS) == tuple(COEFFICIENTS)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_recipe_keys_are_the_objectives_fields(name: str) -> None:
    own = {f.name: f for f in fields(OBJECTIVES[name])}  # type: ignore[arg-type]
    assert set(own) == set(OBJECTIVE_KEYS[name])
    assert all(f.default is not MISSING for f in own.values())
    recipe = {f.name: f.default for f in fields(ObjectiveConfig)}
    assert all(recipe[key] is None for key in own)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_null_keys_give_the_objectives_own_defaults(name: str) -> None:
    assert build_objective(ObjectiveConfig(name=name)) == OBJECTIVES[name]()


def test_recipe_keys_reach_the_objective() -> None:
    assert build_objective(ObjectiveConfig(name="grpo", clip_low=0.1, clip_high=0.0)) == GRPO(0.1, 0.0)
    assert build_objective(ObjectiveConfig(name="ppo", dual_clip=3.0)) == PPO(dual_clip=3.0)
    assert build_objective(ObjectiveConfig(name="k2_5", ratio_low=0.5, tau=0.0)) == K25(ratio_low=0.5, tau=0.0)
    assert build_objective(ObjectiveConfig(name="clip_cov", cov_share=0.1, cov_low=0.0)) == ClipCov(
        cov_share=0.1, cov_low=0.0
    )
    assert build_objective(ObjectiveConfig(name="kl_cov", cov_share=0.1, beta=2.0)) == KLCov(0.1, 2.0)


def test_dotted_path_gets_the_options() -> None:
    path = f"{__name__}.users_objective"
    built = build_objective(ObjectiveConfig(name=path, options={"clip_low": 0.1}))
    assert built == CheckedObjective(GRPO(0.1, 0.2), path)


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


class SelectsNothing:
    """A user's objective that reads a selection and makes none."""

    needs = frozenset({"selected_BT"})

    def __call__(self, batch: Any) -> Any:
        """Is never called."""


def test_an_objective_that_needs_a_selection_makes_it() -> None:
    with pytest.raises(RecipeError, match="needs selected_BT and has no method `select` that makes it"):
        build_objective(ObjectiveConfig(name=f"{__name__}.SelectsNothing"))
    selecting = {name for name in OBJECTIVES if "selected_BT" in OBJECTIVES[name]().needs}
    assert (
        selecting == {name for name in OBJECTIVES if isinstance(OBJECTIVES[name](), Selects)} == {"clip_cov", "kl_cov"}
    )


def test_what_is_no_objective_is_refused() -> None:
    with pytest.raises(RecipeError, match="returns no objective"):
        build_objective(ObjectiveConfig(name=f"{__name__}.returns_no_objective"))


@pytest.mark.parametrize("name", ["grop", "no_such_module.x", "json.no_such_name"])
def test_unknown_names_are_refused_with_the_key(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"rl\.objective\.name=\"?{name}"):
        build_objective(ObjectiveConfig(name=name))
