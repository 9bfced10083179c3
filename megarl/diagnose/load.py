"""Weights in Hugging Face layout, as a model that experiments run on."""

from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from megarl.config.hf_config import read_config
from megarl.diagnose.transformers_model import DTYPES
from megarl.drift.diagnosis.computation import Dtype


def load_model(folder: Path, dtype: Dtype, key: str) -> Any:
    """The folder's model. Args: key: what the user gave the folder as, for refusals.

    Raises:
        RecipeError: the folder has no config.json that can be read.
    """
    read_config(str(folder), key)
    # transformers' bar, over weights that are there in a moment
    disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], attn_implementation="sdpa").eval()
