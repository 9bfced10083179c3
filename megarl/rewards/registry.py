"""Rewards by name, and the user's own by dotted path."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from numbers import Real
from typing import Any

from megarl.config.names import is_dotted_path
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe
from megarl.data.problem import Problem
from megarl.rewards.boxed import boxed_answer
from megarl.rewards.exact import exact
from megarl.rewards.reasoning_gym_reward import ReasoningGymReward
from megarl.rewards.reward import Reward


@dataclass(frozen=True)
class UserReward:
    """A user's function of the response and the reference answer, as a reward."""

    path: str
    function: Callable[[str, str], float] = field(repr=False)

    def __call__(self, response: str, problem: Problem) -> float:
        """What the function returns, unchecked."""
        return self.function(response, problem.answer)


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


def build_reward(recipe: Recipe) -> Reward:
    """The reward that the recipe asks for.

    A dotted path names a callable (response, answer) -> float.

    Raises:
        RecipeError: the name is not registered, or the dotted path leads to no callable.
        UserError: a package that the reward needs is missing.
    """
    name = recipe.reward.name
    if name in REWARDS:
        return REWARDS[name](recipe)
    if not is_dotted_path(name):
        fix = f"use one of {', '.join(REWARDS)}"
        raise refusal("reward.name", name, "is neither a registered reward nor a dotted path like module.function", fix)
    module_name, _, attribute = name.rpartition(".")
    try:
        module = import_module(module_name)
    except ImportError as error:
        reason = f"names the module {module_name}, which cannot be imported ({error})"
        raise refusal("reward.name", name, reason, "put it on PYTHONPATH") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        what = "is not callable" if hasattr(module, attribute) else "is not there"
        reason = f"names {attribute} in the module {module_name}, which {what}"
        raise refusal("reward.name", name, reason, "name a function (response, answer) -> float")
    return UserReward(name, function)


def score(reward: Reward, response: str, problem: Problem) -> float:
    """The reward of a response, checked.

    Raises:
        TypeError: the reward returned no number, which is a bug of the reward.
        ValueError: it returned NaN or an infinity, which is one too.
    """
    value: Any = reward(response, problem)
    name = getattr(reward, "__qualname__", None) or repr(reward)
    if not isinstance(value, Real):
        raise TypeError(f"{name} returned {value!r} for problem {problem.id}, not a number")
    if not math.isfinite(value):
        raise ValueError(f"{name} returned {value!r} for problem {problem.id}, not a finite number")
    return float(value)
