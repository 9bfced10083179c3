"""Weights as a folder in Hugging Face layout, which transformers, vLLM and SGLang load."""

import json
import shutil
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import save_file

from megarl.megatron.models import FAMILIES
from megarl.megatron.policy import FrozenModel

WEIGHTS = "model.safetensors"


def export_hf(policy: FrozenModel, folder: Path, token_ids: dict[str, int]) -> None:
    """Writes config.json and model.safetensors, beside first, then renamed over `folder`. Collective.

    Args:
        policy: the model; its weights keep their dtype.
        folder: replaced where it exists.
        token_ids: eos_token_id and pad_token_id, for the configuration.
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
        config.update({**token_ids, "bos_token_id": None, "dtype": "float32"})
        (beside / "config.json").write_text(json.dumps(config.to_dict(), indent=1, sort_keys=True, default=str))
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
    dist.barrier()
