"""What is said of a server that does not work as the recipe needs."""

from megarl.config.errors import ServerSettingsError
from megarl.config.schema import Recipe
from megarl.rollout.engine import EngineError


def unfit(recipe: Recipe, url: str, complaint: str) -> Exception:
    """The error to raise: a user's mistake where the user started the server, and a bug where this run did.

    Args:
        recipe: says who started it.
        url: the server's.
        complaint: what is wrong, as the rest of a sentence about it.
    """
    if recipe.engine.urls:
        fix = "start it with this recipe's settings, as docs/engines.md says"
        return ServerSettingsError(f"engine.urls={url} {complaint}; {fix}.")
    return EngineError(f"{url} {complaint}")
