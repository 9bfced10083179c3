"""Sources by name."""

from collections.abc import Callable, Mapping

from megarl.config.data import DataConfig
from megarl.config.errors import RecipeError
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe
from megarl.data.chain_arithmetic import ChainArithmetic
from megarl.data.file_source import FileSource
from megarl.data.problem import Source
from megarl.data.reasoning_gym_source import ReasoningGymSource

SOURCES: Mapping[str, Callable[[int, DataConfig], Source]] = {
    "chain_arithmetic": ChainArithmetic,
    "reasoning_gym": ReasoningGymSource,
    "file": FileSource,
}


def build_source(recipe: Recipe) -> Source:
    """The source that the recipe asks for, with its evaluation problems drawn or its files read.

    Raises:
        RecipeError: the source is not registered, or its options cannot be.
        DataError: a file cannot be read as prompts and answers.
        UserError: a package that the source needs is missing.
    """
    name = recipe.data.source
    if name not in SOURCES:
        raise _unknown(name)
    return SOURCES[name](recipe.seed, recipe.data)


def _unknown(name: str) -> RecipeError:
    return refusal("data.source", name, "is not a registered source", f"use one of {', '.join(SOURCES)}")
