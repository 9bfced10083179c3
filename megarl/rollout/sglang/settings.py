"""What the recipe says about sampling and precision against what a server says that it uses."""

from collections.abc import Mapping
from typing import Any

from megarl.config.schema import Recipe
from megarl.platform.platform import current
from megarl.rollout.engine import EngineError
from megarl.rollout.server_environment import engine_dtype
from megarl.rollout.sglang.command import LOADER
from megarl.rollout.unfit import unfit


def check_settings(says: Mapping[str, Any], recipe: Recipe, url: str) -> None:
    """Compares a server's own account with the recipe.

    Args:
        says: its /server_info.
        recipe: what is needed.
        url: names the server.

    Raises:
        EngineError: there are none.
        EngineError, ServerSettingsError: they differ, or an argument is missing that megarl's own servers have; see
            `unfit`.
    """
    wanted = {
        "dtype": engine_dtype(recipe),
        "context_length": recipe.model.max_position_embeddings,
        "tp_size": recipe.engine.tensor,
        # on a CPU SGLang cannot
        **({} if current().name == "cpu" else {"enable_deterministic_inference": True}),
    }
    if recipe.engine.urls:
        # engine.tensor is of servers that the run starts
        wanted["tp_size"] = 1
    if not isinstance(says, Mapping) or not {*wanted, "custom_weight_loader"} <= says.keys():
        raise EngineError(f"{url} is no SGLang, or not one that can be given weights: it does not tell its settings")
    for name, value in wanted.items():
        if says[name] != value:
            raise unfit(recipe, url, f"runs with {name}={says[name]}, and the recipe needs {value}")
    if LOADER not in (says["custom_weight_loader"] or ()):
        complaint = f"runs without --custom-weight-loader {LOADER}, by which its weights are brought"
        raise unfit(recipe, url, complaint)
