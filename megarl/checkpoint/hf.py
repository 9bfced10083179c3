"""Weights as a folder in Hugging Face layout, which transformers, vLLM and SGLang load."""

import json
import shutil
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

from megarl.data.tokenizer import save_tokenizer
from megarl.megatron.models import FAMILIES
from megarl.megatron.policy import FrozenModel
from megarl.megatron.precision import DTYPES

WEIGHTS = "model.safetensors"


def export_hf(policy: FrozenModel, folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Writes config.json, model.safetensors and the tokenizer, beside first, then renamed over `folder`. Collective.

    Args:
        policy: the model; its weights keep their dtype.
        folder: replaced where it exists.
        tokenizer: is saved beside the weights, and tells the configuration its special tokens.
    """
    tensors = {}
    for name, tensor in policy.export():
        if policy.layout.is_main:
            # contiguous and unshared, which safetensors asks for
            tensors[name] = tensor.detach().cpu().clone()
    if policy.layout.is_main:
        beside = folder.with_name(f".{folder.name}.writing")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        save_file(tensors, beside / WEIGHTS, metadata={"format": "pt"})
        config = FAMILIES[policy.recipe.model.family].hf_config(policy.recipe.model, policy.vocab_size)
        special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
        config.update({**special, "dtype": str(DTYPES[policy.recipe.precision.dtype]).removeprefix("torch.")})
        (beside / "config.json").write_text(json.dumps(config.to_dict(), indent=1, sort_keys=True, default=str))
        save_tokenizer(tokenizer, beside)
        # safetensors makes its file for the owner alone, unlike every other file of a run
        (beside / WEIGHTS).chmod((beside / "config.json").stat().st_mode)
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
    dist.barrier()
