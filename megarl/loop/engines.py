"""An engine for as long as a command needs it."""

from collections.abc import Iterator
from contextlib import contextmanager

from megarl.config.schema import Recipe
from megarl.rollout.build import build_engine, build_fleet
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.fleet import Fleet


@contextmanager
def engine_of(recipe: Recipe, vocab_size: int, *, is_main: bool) -> Iterator[EmbeddedEngine | Fleet | None]:
    """The recipe's engine; None off the main rank where it is a server. What was started ends with the context."""
    if recipe.rollout.engine == "embedded":
        yield build_engine(recipe, vocab_size)
    elif not is_main:
        yield None
    else:
        fleet = build_fleet(recipe, vocab_size, lambda text: print(f"megarl: {text}"))
        try:
            yield fleet
        finally:
            fleet.close()
