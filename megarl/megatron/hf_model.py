"""A model in Hugging Face layout that comes without a recipe: its config.json says what its weights must be."""

from pathlib import Path

from megarl.config.hf_config import model_keys, read_config, refuse_other_architectures
from megarl.config.model import ModelConfig
from megarl.config.moe import MoEConfig
from megarl.config.refusal import refusal
from megarl.megatron.hf_folder import HFFolder, check_saved_weights


def check_hf_model(folder: Path, key: str) -> HFFolder:
    """Looks at config.json, and at the names and shapes of the weights beside it.

    Args:
        folder: in Hugging Face layout.
        key: what the user gave the folder as, for refusals.

    Raises:
        RecipeError: config.json cannot be read or is of a model that megarl does not have; or as `check_saved_weights`.
    """
    held = read_config(str(folder), key)
    refuse_other_architectures(str(folder), held, key)
    shape = model_keys(str(folder), held, key)
    model = ModelConfig(**{**shape, "moe": MoEConfig(**shape.get("moe", {}))})
    if "vocab_size" not in held:
        raise refusal(key, str(folder), "has a config.json without vocab_size", "mend it")
    return check_saved_weights(folder, model, held["vocab_size"], key, more_rows=False)
