"""An engine for as long as a command needs it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from megarl.config.errors import UserError
from megarl.config.refusal import in_words
from megarl.config.schema import Recipe
from megarl.rollout.build import build_engine, build_fleet
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.engine import Engine, EngineError
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


def await_running_servers(recipe: Recipe, engine: Engine | None, world_size: int) -> None:
    """Returns once the servers of `engine.urls`, if there are any, are up and such as the recipe needs. Collective.

    Args:
        recipe: of the run.
        engine: the servers; None but on the main rank.
        world_size: number of processes.

    Raises:
        UserError: they are not; on every rank.
    """
    if not recipe.engine.urls or recipe.rollout.engine == "embedded":
        return
    refused: list[UserError | None] = [None]
    if isinstance(engine, Fleet):
        try:
            with running_servers(recipe, "used"):
                engine.revive()
        except UserError as error:
            refused[0] = error
    if world_size > 1:
        dist.broadcast_object_list(refused)
    if refused[0] is not None:
        raise refused[0]


@contextmanager
def running_servers(recipe: Recipe, doing: str, *wrong: type[Exception]) -> Iterator[None]:
    """Puts into words that the servers which the user started are not there, or are others than the recipe needs.

    Args:
        recipe: whose `engine.urls` they are; an error of a server that was started here is none of the user's.
        doing: what cannot be done with them, such as 'measured'.
        wrong: what else says that they are others.

    Raises:
        UserError: what the server answered.
    """
    told: tuple[type[Exception], ...] = (EngineError, ServerUnreachableError, *wrong)
    try:
        yield
    except told as error:
        if not recipe.engine.urls:
            raise
        reason = " ".join(str(error).split())[:_REASON].rstrip(".")
        raise UserError(
            f"engine.urls={in_words(recipe.engine.urls)} cannot be {doing} ({reason}); start a server with this "
            "recipe's settings, as docs/engines.md says."
        ) from error
