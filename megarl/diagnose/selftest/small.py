"""Small models with random weights, in versions a step apart."""

import copy
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from megarl.diagnose.transformers_model import DTYPES
from megarl.drift.diagnosis.computation import Dtype

VOCAB = 96
PAD, STOP, BEGIN = 0, 1, 2
OPENER = (BEGIN, 3, 4)
"""What stands for a system message's tokens."""
AGES = 2
_SHAPES = ((2, 48), (2, 64), (3, 64), (2, 96), (4, 48))
"""Layers and width, by seed."""
_HEAD_SIZE = 16
_LOGITS_STD = 2.0
"""Makes a token's entropy about 2.5 nats of log 96 = 4.6: neither certain nor uniform, as a trained model's."""
_STEP = 0.05
"""Relative size of the step between two versions: what one tensor of it changes is more than bf16 rounds."""


def small_models(family: str, seed: int, dtype: Dtype) -> list[Any]:
    """The newest version, then those before it.

    Args:
        family: 'llama', 'qwen2', 'qwen3' or 'qwen3_moe'.
        seed: of the shape and the weights.
        dtype: of all.
    """
    layers, width = _SHAPES[seed % len(_SHAPES)]
    mixture = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": width, "norm_topk_prob": True}
    config = AutoConfig.for_model(
        family,
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // _HEAD_SIZE,
        num_key_value_heads=1 if width // _HEAD_SIZE % 2 else 2,
        head_dim=_HEAD_SIZE,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        **(mixture if family == "qwen3_moe" else {}),
    )
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            std = 1.0 if "embed_tokens" in name else parameter.shape[-1] ** -0.5
            std *= _LOGITS_STD if "lm_head" in name else 1.0
            parameter.data.normal_(std=std, generator=generator)
        elif "norm" in name:
            parameter.data.uniform_(0.7, 1.3, generator=generator)
        else:
            parameter.data.normal_(std=0.1, generator=generator)
    versions = []
    for _ in range(1 + AGES):
        versions.append(in_dtype(model, dtype))
        for parameter in model.parameters():
            noise = torch.empty_like(parameter).normal_(generator=generator)
            parameter.data += _STEP * parameter.data.std(correction=0).nan_to_num(0.1) * noise
    return versions


def in_dtype(model: Any, dtype: Dtype) -> Any:
    """A copy in another precision, whose rotary frequencies stay in fp32: `Module.to` would round them too."""
    cast = copy.deepcopy(model).to(DTYPES[dtype])
    cast.model.rotary_emb = type(cast.model.rotary_emb)(cast.config)
    return cast
