"""Objectives by name, and the user's own by dotted path."""

from collections.abc import Callable, Mapping

from megarl.config.dotted import import_dotted, mismatch
from megarl.config.names import is_dotted_path
from megarl.config.refusal import refusal
from megarl.config.training import ObjectiveConfig
from megarl.objectives.batch import Objective
from megarl.objectives.grpo import GRPO


def _grpo(config: ObjectiveConfig) -> Objective:
    return GRPO(config.clip_low, config.clip_high, config.kl_coefficient)


OBJECTIVES: Mapping[str, Callable[[ObjectiveConfig], Objective]] = {"grpo": _grpo}


def build_objective(config: ObjectiveConfig) -> Objective:
    """The objective that the recipe asks for.

    A name with a dot is the path of a callable that takes `objective.options` as keywords and returns an objective.

    Raises:
        RecipeError: the name is not registered, or the dotted path cannot be imported.
    """
    if config.name in OBJECTIVES:
        return OBJECTIVES[config.name](config)
    if not is_dotted_path(config.name):
        reason = "is neither a registered objective nor a dotted path like module.factory"
        raise refusal("rl.objective.name", config.name, reason, f"use one of {', '.join(OBJECTIVES)}")
    factory = import_dotted("rl.objective.name", config.name, "a callable that takes the options as keywords")
    if (complaint := mismatch(factory, **config.options)) is not None:
        reason = f"does not fit {config.name} ({complaint})"
        raise refusal("rl.objective.options", config.options, reason, "give the keywords that it takes")
    objective: Objective = factory(**config.options)
    if not callable(objective) or not hasattr(objective, "needs_reference"):
        reason = "returns no objective: it must be callable and have needs_reference"
        raise refusal("rl.objective.name", config.name, reason, "see megarl.objectives.Objective")
    return objective
