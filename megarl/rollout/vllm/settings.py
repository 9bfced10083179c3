"""What a server says of itself, which may be another than the recipe's, or no vLLM."""

from collections.abc import Collection, Mapping
from typing import Any

from megarl.rollout.engine import EngineError


def told_settings(answer: Any, names: Collection[str], url: str) -> Mapping[str, Any]:
    """The settings of its model, in an answer of /server_info. Args: names: that must be there. url: of the server.

    Raises:
        EngineError: they are not.
    """
    settings = answer.get("vllm_config") if isinstance(answer, Mapping) else None
    settings = settings.get("model_config") if isinstance(settings, Mapping) else None
    if not isinstance(settings, Mapping) or not set(names) <= settings.keys():
        raise EngineError(f"{url} is no vLLM, or not one that can be given weights: it does not tell its settings")
    return settings
