"""Weights in Hugging Face layout, as a model that experiments run on."""

from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from megarl.config.refusal import refusal
from megarl.diagnose.transformers_model import DTYPES
from megarl.drift.diagnosis.computation import Dtype
from megarl.megatron.hf_model import check_hf_model

_FIX = "give a folder with all weights of a causal language model"


def load_model(folder: Path, dtype: Dtype, key: str) -> Any:
    """The folder's model. Args: key: what the user gave the folder as, for refusals.

    Raises:
        RecipeError: as `check_hf_model`; transformers would draw the tensors that are not there at random.
    """
    check_hf_model(folder, key)
    # transformers' bar, over weights that are there in a moment
    disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=DTYPES[dtype],
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
        )
    # what is raised depends on the broken file
    except Exception as error:
        first_line = str(error).strip().split("\n")[0].rstrip(".")
        raise refusal(key, str(folder), f"holds no model ({first_line})", _FIX) from error
    return model.eval()
