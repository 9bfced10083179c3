"""The folder of starting weights: it gives the shape that a recipe leaves out, and holds the one that it has."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megarl.config.compose import Layer
from megarl.config.hf_config import HF_NAMES, model_keys, read_config, refuse_other_architectures
from megarl.config.hf_moe import HF_NAMES as MOE_HF_NAMES
from megarl.config.refusal import in_words, refusal
from megarl.config.schema import Recipe

_FREE = "max_position_embeddings"
"""The context length: weights may be trained further on longer or shorter responses."""


def with_init_layer(tree: dict[str, Any], layers: Sequence[Layer]) -> list[Layer]:
    """The layers, above those that the folder's config.json gives as a layer of its own.

    Args:
        tree: the resolved recipe of these layers, which may name the folder.
        layers: what the recipe is made of.

    Raises:
        RecipeError: the folder cannot be used.
    """
    folder = tree["model"]["init_from"]
    if not isinstance(folder, str):
        return list(layers)
    return [Layer(str(Path(folder) / "config.json"), {"model": _shape(folder)}), *layers]


def init_folder_is_this_model(recipe: Recipe) -> None:
    """Starting weights must have the recipe's shape, and be in safetensors.

    Raises:
        RecipeError: the folder is missing or unreadable, or a key of `model` differs from it.
    """
    folder = recipe.model.init_from
    if folder is None:
        return
    shape = _shape(folder)
    moe = shape.pop("moe", {})
    _same("model", recipe.model, shape, HF_NAMES, folder)
    _same("model.moe", recipe.model.moe, moe, MOE_HF_NAMES, folder)


def _same(section: str, has: Any, holds: dict[str, Any], hf_names: dict[str, str], folder: str) -> None:
    for key, held in holds.items():
        wanted = getattr(has, key)
        if key != _FREE and held != wanted:
            reason = f"is not what {folder} holds ({hf_names[key]}={in_words(held)})"
            raise refusal(f"{section}.{key}", wanted, reason, f"set {section}.{key}={in_words(held)} or leave it out")


def check_vocabulary(recipe: Recipe, vocab_size: int) -> None:
    """Every token must have a row in the starting weights; published models have more rows than tokens, as padding.

    Raises:
        RecipeError: the tokenizer has more tokens.
    """
    folder = recipe.model.init_from
    if folder is not None and (held := read_config(folder).get("vocab_size") or vocab_size) < vocab_size:
        reason = f"has a vocabulary of {held}, but the recipe's tokenizer one of {vocab_size}"
        raise refusal("model.init_from", folder, reason, "give the tokenizer that the weights were trained with")


def _shape(folder: str) -> dict[str, Any]:
    if not os.path.isdir(folder):
        raise refusal("model.init_from", folder, "is not a folder", "give the folder of a downloaded model")
    held = read_config(folder)
    refuse_other_architectures(folder, held)
    if not any(Path(folder).glob("*.safetensors")):
        raise refusal("model.init_from", folder, "holds no .safetensors file", "convert its weights to safetensors")
    return model_keys(folder, held)
