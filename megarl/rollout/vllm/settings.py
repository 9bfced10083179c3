"""What a server says of itself, which may be another than the recipe's, or no vLLM."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from megarl.rollout.engine import EngineError

_OF_SHAPES = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads"),
)
"""Of a model's config.json: what decides which tensors it has."""


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


def check_model(told: Any, wanted: Mapping[str, Any], url: str) -> None:
    """Refuses a server of a model with other tensors.

    Args:
        told: the model's configuration as the server tells it: config.json, or its name and config.json as text. What
            is neither is left to the first sync, which compares tensors.
        wanted: config.json of the trainer's model.
        url: of the server.

    Raises:
        EngineError: its model is another.
    """
    if isinstance(told, str):
        try:
            told = json.loads(told[told.find("{") :])
        except (ValueError, RecursionError):
            return
    if not isinstance(told, Mapping):
        return
    for name in _OF_SHAPES:
        if name in told and name in wanted and told[name] != wanted[name]:
            raise EngineError(f"{url} has a model of {name}={told[name]}, and the recipe's has {wanted[name]}")
