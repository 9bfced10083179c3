"""config.json of a folder in Hugging Face layout, in the words of the recipe's `model` section."""

import json
import math
from pathlib import Path
from typing import Any

from megarl.config.errors import RecipeError
from megarl.config.hf_moe import KINDS as MOE_KINDS
from megarl.config.hf_moe import moe_keys
from megarl.config.names import KNOWN_FAMILIES, MOE_FAMILIES
from megarl.config.refusal import in_words, refusal

HF_NAMES = {
    "family": "model_type",
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "intermediate_size",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_key_value_heads",
    "head_dim": "head_dim",
    "max_position_embeddings": "max_position_embeddings",
    "rope_theta": "rope_theta",
    "rope_scaling": "rope_type",
    "rope_scaling_factor": "factor",
    "rope_low_freq_factor": "low_freq_factor",
    "rope_high_freq_factor": "high_freq_factor",
    "rope_original_context": "original_max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
}
"""Keys under `model` that config.json decides, and their names there."""

_LLAMA3 = ("rope_scaling_factor", "rope_low_freq_factor", "rope_high_freq_factor", "rope_original_context")
_NEEDED = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "max_position_embeddings")
_FLOATS = ("rope_theta", "rms_norm_eps", "factor", "low_freq_factor", "high_freq_factor", "partial_rotary_factor")
_TEXTS = ("model_type", "rope_type", "hidden_act")
_FLAGS = ("tie_word_embeddings", "use_sliding_window", "attention_bias", "mlp_bias")
_ROPE = ("rope_type", "rope_theta", "partial_rotary_factor", *(HF_NAMES[key] for key in _LLAMA3))
"""What is read of a mapping on rotary embeddings."""
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "rope_parameters": ((dict,), "mapping"),
    "rope_scaling": ((dict,), "mapping"),
    "layer_types": ((list,), "list"),
    **{name: ((bool,), "true or false") for name in _FLAGS},
    "vocab_size": ((int,), "whole number"),
    **{HF_NAMES[key]: ((int,), "whole number") for key in (*_NEEDED, "num_query_groups", "head_dim", _LLAMA3[-1])},
    **{name: ((int, float), "number") for name in _FLOATS},
    **{name: ((str,), "text") for name in _TEXTS},
    **MOE_KINDS,
}
_LEFT_OUT = {"tie_word_embeddings": False, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "rope_type": "default"}
"""What transformers takes for an entry that the file does not have, in every family here."""


def read_config(folder: str, key: str = "model.init_from") -> dict[str, Any]:
    """The entries that are not null, with transformers 5's rope_parameters (4's rope_scaling) laid flat.

    Args:
        folder: in Hugging Face layout.
        key: what the user gave the folder as, for refusals.

    Raises:
        RecipeError: the file is missing, cannot be read, or an entry that is read here has another type, is a number
            that is not above 0, or scales rotary embeddings without saying how.
    """
    file = Path(folder) / "config.json"
    try:
        held = json.loads(file.read_text())
    except FileNotFoundError as error:
        reason = "holds no config.json"
        raise refusal(key, folder, reason, "give a folder in Hugging Face layout") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"{file} cannot be read ({error}); give another {key}.") from error
    if not isinstance(held, dict):
        raise RecipeError(f"{file} holds {in_words(held)}, which is no mapping; give another {key}.")
    _refuse_other_types(file, held, key)
    rope: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        rope |= _flat_rope(file, name, held.get(name) or {}, key)
    _refuse_other_types(file, rope, key)
    return {name: value for name, value in {**held, **rope}.items() if value is not None}


def _flat_rope(file: Path, name: str, given: dict[str, Any], key: str) -> dict[str, Any]:
    """What is read here of a mapping on rotary embeddings."""
    # the name before transformers 4.45
    kind = {"rope_type": given["type"]} if "type" in given else {}
    rope = {**kind, **given}
    is_by_layer = any(isinstance(value, dict) for value in rope.values())
    if is_by_layer or (name == "rope_scaling" and rope and rope.get("rope_type") is None):
        reason = "which differs from layer to layer" if is_by_layer else "which does not say how (rope_type)"
        raise RecipeError(f"{file} has {name}={in_words(given)}, {reason}; give another {key}.")
    return {one: rope[one] for one in _ROPE if one in rope}


def model_keys(folder: str, held: dict[str, Any], key: str = "model.init_from") -> dict[str, Any]:
    """The keys of `model` that the entries decide, with their values; those of its section `moe` as a mapping.

    Raises:
        RecipeError: an entry without which the shape is not known is missing, or heads do not share key-value heads
            evenly.
    """
    entries = {**_LEFT_OUT, **held}
    for name in (HF_NAMES[needed] for needed in _NEEDED):
        if name not in entries:
            reason = f"holds a config.json without {name}"
            raise refusal(key, folder, reason, "give a folder in Hugging Face layout")
    heads = entries["num_attention_heads"]
    entries.setdefault("num_key_value_heads", heads)
    entries.setdefault("head_dim", entries["hidden_size"] // heads)
    if heads % (groups := entries["num_key_value_heads"]):
        reason = f"holds a config.json whose num_key_value_heads={groups} does not divide num_attention_heads={heads}"
        raise refusal(key, folder, reason, "give another folder")
    scaled = entries["rope_type"] == "llama3"
    entries["rope_type"] = "llama3" if scaled else "none"
    wanted = [one for one in HF_NAMES if scaled or one not in _LLAMA3]
    # without its own length before the scaling, transformers takes the context's
    entries.setdefault("original_max_position_embeddings", entries["max_position_embeddings"])
    for name in (HF_NAMES[one] for one in wanted):
        if name not in entries:
            reason = f"scales its rotary embeddings, and its config.json has no {name}"
            raise refusal(key, folder, reason, "give a folder in Hugging Face layout")
    found = {one: entries[HF_NAMES[one]] for one in wanted}
    return {**found, "moe": moe_keys(folder, held, key)} if held.get("model_type") in MOE_FAMILIES else found


def refuse_other_architectures(folder: str, held: dict[str, Any], key: str = "model.init_from") -> None:
    """The network must be one that the families here build.

    Raises:
        RecipeError: it has another type, or attention, biases, activations or number formats that they do not have.
    """
    if (family := held.get("model_type")) not in KNOWN_FAMILIES:
        reason = f"holds a model of model_type={in_words(family)}"
        raise refusal(key, folder, reason, f"give one of {', '.join(KNOWN_FAMILIES)}")
    for reason, fix, is_so in (
        (
            f"scales its rotary embeddings (rope_type={held.get('rope_type')})",
            "start from a model without rope scaling or with llama3's",
            held.get("rope_type", "default") not in ("default", "llama3"),
        ),
        (
            "turns a part of each head only (partial_rotary_factor)",
            "start from a model that turns all of it",
            held.get("partial_rotary_factor", 1) != 1,
        ),
        (
            "uses sliding-window attention",
            "start from a model with full attention",
            held.get("use_sliding_window") or any(kind != "full_attention" for kind in held.get("layer_types") or ()),
        ),
        (
            "has biases on its attention or feed-forward layers (attention_bias, mlp_bias)",
            "start from a model without",
            held.get("attention_bias") or held.get("mlp_bias"),
        ),
        (
            f"has another activation than SwiGLU's (hidden_act={held.get('hidden_act')})",
            "start from a model with silu",
            held.get("hidden_act", "silu") != "silu",
        ),
        (
            "holds quantised weights (quantization_config)",
            "start from the model in bfloat16 or float32",
            "quantization_config" in held,
        ),
    ):
        if is_so:
            raise refusal(key, folder, reason, fix)


def _refuse_other_types(file: Path, held: dict[str, Any], key: str) -> None:
    for name, (kinds, words) in _KINDS.items():
        value = held.get(name)
        if value is None:
            continue
        if type(value) not in kinds:
            reason = f"is no {words}"
        elif type(value) in (int, float) and not 0 < value < math.inf:
            reason = "is no number above 0"
        elif name == "mlp_only_layers" and any(type(layer) is not int for layer in value):
            reason = "holds more than whole numbers"
        else:
            continue
        raise RecipeError(f"{file} has {name}={in_words(value)}, which {reason}; give another {key}.")
