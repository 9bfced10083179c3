"""An engine for as long as a command needs it."""

from collections.abc import Iterator
from contextlib import contextmanager

from megarl.config.errors import UserError
from megarl.config.refusal import in_words
from megarl.config.schema import Recipe
from megarl.rollout.build import build_engine, build_fleet
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.engine import EngineError
from megarl.rollout.fleet import Fleet
from megarl.rollout.replica import ServerUnreachableError

_REASON = 200
"""Characters of a server's answer that a message shows."""


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


@contextmanager
def running_servers(recipe: Recipe, doing: str) -> Iterator[None]:
    """Puts into words that the servers which the user started are not there, or are others than the recipe needs.

    Args:
        recipe: whose `engine.urls` they are; an error of a server that was started here is none of the user's.
        doing: what cannot be done with them, such as 'measured'.

    Raises:
        UserError: what the server answered.
    """
    try:
        yield
    except (EngineError, ServerUnreachableError) as error:
        if not recipe.engine.urls:
            raise
        reason = str(error).split("\n")[0][:_REASON]
        raise UserError(
            f"engine.urls={in_words(recipe.engine.urls)} cannot be {doing} ({reason}); start a server with this "
            "recipe's settings, as docs/engines.md says."
        ) from error
