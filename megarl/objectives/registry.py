"""Objectives by name, and the user's own by dotted path."""

from collections.abc import Callable, Mapping
from importlib import import_module

from megarl.config.errors import RecipeError
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
    module_name, _, attribute = config.name.rpartition(".")
    if not module_name:
        raise RecipeError(
            f"rl.objective.name={config.name} is not a registered objective ({', '.join(OBJECTIVES)}); "
            "name one of these or give the dotted path of your own."
        )
    try:
        factory = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"rl.objective.name={config.name} cannot be imported ({error}); put its module on PYTHONPATH."
        ) from error
    objective: Objective = factory(**config.options)
    return objective
