"""Rewards by name, and the user's own by dotted path."""

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from megarl.config.dotted import import_dotted, mismatch
from megarl.config.names import is_dotted_path
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe
from megarl.data.problem import Problem
from megarl.rewards.boxed import boxed_answer
from megarl.rewards.exact import exact
from megarl.rewards.reasoning_gym_reward import ReasoningGymReward
from megarl.rewards.reward import Reward


def _reasoning_gym(recipe: Recipe) -> Reward:
    if recipe.data.source != "reasoning_gym":
        reason = f"cannot score data.source={recipe.data.source}"
        raise refusal("reward.name", "reasoning_gym", reason, "set data.source=reasoning_gym")
    return ReasoningGymReward(recipe.data.options)


REWARDS: Mapping[str, Callable[[Recipe], Reward]] = {
    "boxed_answer": lambda recipe: boxed_answer,
    "exact": lambda recipe: exact,
    "reasoning_gym": _reasoning_gym,
}


LARGEST = 1e12
"""Bound on a reward. fp32, in which gradients are squared, ends at 3e38: it leaves a factor of 1e7 for them."""


def build_reward(recipe: Recipe) -> Reward:
    """The reward that the recipe asks for.

    A dotted path names a callable with the signature of `Reward`: (response, problem) -> float.

    Raises:
        RecipeError: the name is not registered, or the dotted path leads to no such callable.
        UserError: a package that the reward needs is missing.
    """
    name = recipe.reward.name
    if name in REWARDS:
        return REWARDS[name](recipe)
    if not is_dotted_path(name):
        fix = f"use one of {', '.join(REWARDS)}"
        raise refusal("reward.name", name, "is neither a registered reward nor a dotted path like module.function", fix)
    reward: Reward = import_dotted("reward.name", name, "a function (response, problem) -> float")
    if (complaint := mismatch(reward, "", Problem("", "", ""))) is not None:
        reason = f"cannot be called with a response and a problem ({complaint})"
        raise refusal("reward.name", name, reason, "name a function (response, problem) -> float")
    return reward


def score(reward: Reward, response: str, problem: Problem) -> float:
    """The reward of a response, checked.

    Raises:
        TypeError: the reward returned no number, which is a bug of the reward.
        ValueError: it returned NaN, an infinity or more than LARGEST either way, which is one too.
    """
    value: Any = reward(response, problem)
    name = getattr(reward, "__qualname__", None) or repr(reward)
    if not isinstance(value, Real):
        raise TypeError(f"{name} returned {value!r} for problem {problem.id}, not a number")
    if not math.isfinite(value):
        raise ValueError(f"{name} returned {value!r} for problem {problem.id}, not a finite number")
    if abs(float(value)) > LARGEST:
        raise ValueError(f"{name} returned {value!r} for problem {problem.id}, beyond {LARGEST:g} either way: scale it")
    return float(value)
