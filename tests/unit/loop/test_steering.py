"""The KL coefficient that is steered to a target, and the alarm on entropy."""

import math

import pytest

from megarl.config.schema import Recipe
from megarl.loop.alarm import BASELINE_STEPS, entropy_has_collapsed, raise_clip
from megarl.loop.rl import steered
from tests.unit.loop.parts import run_without_parts


def kl_recipe(target: float | None, horizon: int = 1000) -> Recipe:
    """256 responses a step."""
    recipe = Recipe()
    recipe.rl.kl.target, recipe.rl.kl.horizon = target, horizon
    assert recipe.rl.rollouts_per_step == 256
    return recipe


# measured KL, against a target of .1 -> the relative error after its bounds (1909.08593, section 2.2)
ERRORS = {0.1: 0.0, 0.11: 0.1, 0.09: -0.1, 0.5: 0.2, 0.0: -0.2, -0.3: -0.2}


@pytest.mark.parametrize("kl", ERRORS)
def test_the_coefficient_moves_by_the_relative_error(kl: float) -> None:
    run = run_without_parts(kl_recipe(0.1))
    assert steered(run, 0.05, kl) == pytest.approx(0.05 * math.exp(ERRORS[kl] * 256 / 1000), rel=1e-12)


@pytest.mark.parametrize(("target", "kl"), [(None, 0.5), (0.1, None)])
def test_without_a_target_or_a_measure_it_stays(target: float | None, kl: float | None) -> None:
    assert steered(run_without_parts(kl_recipe(target)), 0.05, kl) == 0.05


def test_it_settles_where_the_kl_is_the_target() -> None:
    """Of a policy whose KL falls as the coefficient rises, say as .01 / coefficient."""
    run = run_without_parts(kl_recipe(0.1))
    coefficient = 0.02
    for _ in range(300):
        coefficient = steered(run, coefficient, 0.01 / coefficient)
    assert coefficient == pytest.approx(0.1, rel=1e-3)


def alarms(share: float | None, entropies: list[float]) -> list[bool]:
    """Whether the alarm goes off, step by step."""
    recipe = Recipe()
    recipe.rl.entropy.alarm_share = share
    run = run_without_parts(recipe)
    return [entropy_has_collapsed(run, entropy) for entropy in entropies]


def test_the_alarm_compares_with_the_mean_of_the_first_steps() -> None:
    first = [0.8, 1.2, 1.0, 0.9, 1.1]
    assert len(first) == BASELINE_STEPS
    assert alarms(0.2, [*first, 0.21, 0.19, 0.5, 0.0]) == [False] * 5 + [False, True, False, True]


def test_the_baseline_itself_raises_no_alarm() -> None:
    assert not any(alarms(1.0, [1.0, 0.001, 0.001, 0.001, 0.001]))


def test_no_share_is_no_alarm() -> None:
    assert not any(alarms(None, [1.0] * 6 + [0.0]))


def test_the_baseline_is_part_of_the_state() -> None:
    """So a resumed run has the same one."""
    recipe = Recipe()
    recipe.rl.entropy.alarm_share = 0.5
    run = run_without_parts(recipe)
    for entropy in (1.0, 2.0, 3.0):
        entropy_has_collapsed(run, entropy)
    assert run.state.as_dict()["entropy_baseline"] == [1.0, 2.0, 3.0]


def test_the_clip_rises_by_its_factor_to_its_largest() -> None:
    recipe = Recipe()
    recipe.rl.entropy.alarm_clip_factor, recipe.rl.entropy.alarm_clip_max = 1.5, 0.6
    run = run_without_parts(recipe)
    run.state.clip_high = 0.2
    risen, clips = zip(*((raise_clip(run), run.state.clip_high) for _ in range(5)), strict=True)
    assert risen == (True, True, True, False, False)
    assert clips == pytest.approx((0.3, 0.45, 0.6, 0.6, 0.6), rel=1e-12)
    assert run.state.as_dict()["clip_high"] == 0.6
