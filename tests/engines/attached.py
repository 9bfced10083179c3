"""Commands beside servers that run already, with something of theirs replaced."""

import os
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from megarl.cli import main
from megarl.config.asynchrony import AsynchronyConfig
from megarl.config.schema import Recipe
from megarl.loop import budget_engine


def beside(argv: list[str], dtype: str, url: str, token: str) -> int:
    """`main`, where a server of that number format runs already; the command starts those of others.

    That the settings asked for are its own is what attaching to it checks.
    """
    started = budget_engine.engine_of
    attached = []

    def engine_of(recipe: Recipe, vocab_size: int, *, is_main: bool) -> AbstractContextManager[Any]:
        if recipe.engine.dtype == dtype:
            assert recipe.engine.quantization == "none"
            attached.append(url)
            os.environ[recipe.engine.token_variable] = token
            recipe = replace(recipe, engine=replace(recipe.engine, urls=[url]))
        return started(recipe, vocab_size, is_main=is_main)

    budget_engine.engine_of = engine_of
    code = main(argv)
    assert attached == [url]
    return code


def nothing_ahead(argv: list[str]) -> int:
    """`main`, where an asynchronous run begins no step before its own time."""
    AsynchronyConfig.lookahead = property(lambda config: 0)  # type: ignore[method-assign, assignment]
    return main(argv)
