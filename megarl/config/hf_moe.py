"""config.json's entries on routed experts, in the words of the recipe's `model.moe` section."""

from typing import Any

from megarl.config.refusal import in_words, refusal

HF_NAMES = {
    "num_experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "ffn_hidden_size": "moe_intermediate_size",
    "norm_topk_prob": "norm_topk_prob",
    "dense_layers": "mlp_only_layers",
}
"""Keys under `model.moe` that config.json decides, and their names there."""

KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "num_experts": ((int,), "whole number"),
    "num_local_experts": ((int,), "whole number"),
    "num_experts_per_tok": ((int,), "whole number"),
    "moe_intermediate_size": ((int,), "whole number"),
    "decoder_sparse_step": ((int,), "whole number"),
    "norm_topk_prob": ((bool,), "true or false"),
    "mlp_only_layers": ((list,), "list"),
}
"""Types of those entries, in words too."""


def moe_keys(folder: str, held: dict[str, Any], key: str) -> dict[str, Any]:
    """The keys of `model.moe` that the entries decide, with their values.

    Raises:
        RecipeError: an entry without which the shape is not known is missing, or every few layers alone have experts.
    """
    # transformers 5 writes num_local_experts, and the published folders have num_experts
    entries = {"norm_topk_prob": False, "mlp_only_layers": [], **held}
    entries.setdefault("num_experts", held.get("num_local_experts"))
    for name in HF_NAMES.values():
        if entries.get(name) is None:
            reason = f"holds a config.json without {name}"
            raise refusal(key, folder, reason, "give a folder in Hugging Face layout")
    if (step := held.get("decoder_sparse_step", 1)) != 1:
        reason = f"has experts in some layers by decoder_sparse_step={in_words(step)}"
        raise refusal(key, folder, reason, "name the dense layers in mlp_only_layers instead")
    return {one: entries[hf_name] for one, hf_name in HF_NAMES.items()}
