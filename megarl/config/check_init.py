"""Whether the folder of starting weights holds the model that the recipe describes."""

import json
from pathlib import Path
from typing import Any

from megarl.config.errors import RecipeError
from megarl.config.refusal import in_words, refusal
from megarl.config.schema import Recipe

_HF_NAMES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "intermediate_size",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_key_value_heads",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
    "family": "model_type",
}
"""Keys under `model` that decide what the weights mean, and their names in Hugging Face's config.json.

The context length is left out: weights may be trained further on longer or shorter responses.
"""

_MAPPINGS = ("rope_parameters", "rope_scaling")
_NUMBERS = ("head_dim", "hidden_size", "num_attention_heads", "vocab_size")
"""Entries of config.json that are looked into or computed with here; null or none is fine."""


def init_folder_is_this_model(recipe: Recipe) -> None:
    """Starting weights must have the recipe's shape, and be in safetensors.

    Raises:
        RecipeError: the folder is missing or unreadable, or a key of `model` differs from it.
    """
    folder = recipe.model.init_from
    if folder is None:
        return
    if not Path(folder).is_dir():
        raise refusal("model.init_from", folder, "is not a folder", "give the folder of a downloaded model")
    held = _config(folder)
    if not any(Path(folder).glob("*.safetensors")):
        raise refusal("model.init_from", folder, "holds no .safetensors file", "convert its weights to safetensors")
    for key, hf_name in _HF_NAMES.items():
        wanted = getattr(recipe.model, key)
        if hf_name in held and held[hf_name] != wanted:
            reason = f"is not what {folder} holds ({hf_name}={in_words(held[hf_name])})"
            raise refusal(f"model.{key}", wanted, reason, f"set model.{key}={in_words(held[hf_name])}")
    _same_positions(folder, held)
    heads = held.get("num_attention_heads") or 1
    head_dim = held.get("head_dim") or (held.get("hidden_size") or 0) // max(heads, 1)
    if head_dim and head_dim != recipe.model.head_dim:
        reason = f"is not what {folder} holds ({head_dim})"
        raise refusal("model.head_dim", recipe.model.head_dim, reason, f"set model.head_dim={head_dim}")


def _same_positions(folder: str, held: dict[str, Any]) -> None:
    """Attention must be full and rotary embeddings unscaled: the model that is built knows no other."""
    scaling = (held.get("rope_scaling") or {}).get("rope_type", held.get("rope_type", "default"))
    if scaling != "default":
        reason = f"scales its rotary embeddings (rope_type={scaling})"
        raise refusal("model.init_from", folder, reason, "start from a model without rope scaling")
    if held.get("use_sliding_window"):
        reason = "uses sliding-window attention"
        raise refusal("model.init_from", folder, reason, "start from a model with full attention")


def check_vocabulary(recipe: Recipe, vocab_size: int) -> None:
    """Every token must have a row in the starting weights; published models have more rows than tokens, as padding.

    Raises:
        RecipeError: the tokenizer has more tokens.
    """
    folder = recipe.model.init_from
    if folder is not None and (held := _config(folder).get("vocab_size") or vocab_size) < vocab_size:
        reason = f"has a vocabulary of {held}, but the recipe's tokenizer one of {vocab_size}"
        raise refusal("model.init_from", folder, reason, "give the tokenizer that the weights were trained with")


def _config(folder: str) -> dict[str, Any]:
    """config.json with transformers 5's rope_parameters laid flat, as transformers 4 had them."""
    file = Path(folder) / "config.json"
    try:
        held = json.loads(file.read_text())
    except FileNotFoundError as error:
        reason = "holds no config.json"
        raise refusal("model.init_from", folder, reason, "give a folder in Hugging Face layout") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"{file} cannot be read ({error}); give another model.init_from.") from error
    if not isinstance(held, dict):
        raise RecipeError(f"{file} holds {in_words(held)}, which is no mapping; give another model.init_from.")
    for name in _MAPPINGS:
        _refuse_other(file, held, name, dict, "mapping")
    for name in _NUMBERS:
        _refuse_other(file, held, name, int, "whole number")
    return {**(held.get("rope_parameters") or {}), **held}


def _refuse_other(file: Path, held: dict[str, Any], name: str, kind: type, words: str) -> None:
    value = held.get(name)
    if value is not None and type(value) is not kind:
        raise RecipeError(f"{file} has {name}={in_words(value)}, which is no {words}; give another model.init_from.")
