"""Qwen3 with routed experts: Qwen3's attention, and in most layers a router and experts for the feed-forward layer."""

import re
from collections.abc import Iterator
from typing import Any

from transformers import Qwen3MoeConfig

from megarl.config.model import ModelConfig
from megarl.megatron.models.dense import (
    EMBEDDING,
    attention_mapping,
    attention_shapes,
    common_hf_keys,
    last_shapes,
    mlp_mapping,
    mlp_shapes,
    outer_mapping,
)
from megarl.megatron.models.family import TensorShape
from megarl.megatron.models.mapping import Mapping, copied, gate_up
from megarl.megatron.models.qwen3 import ATTENTION

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.(linear_fc[12])\.weight")


def transformer_options(model: ModelConfig) -> dict[str, Any]:
    """See `Family`."""
    moe = model.moe
    return {
        **ATTENTION.transformer_options(),
        "num_moe_experts": moe.num_experts,
        "moe_router_topk": moe.experts_per_token,
        "moe_ffn_hidden_size": moe.ffn_hidden_size,
        "moe_layer_freq": [int(moe.is_routed(layer)) for layer in range(model.num_layers)],
        # a softmax over the chosen experts is one over all of them, scaled to a sum of 1
        "moe_router_pre_softmax": not moe.norm_topk_prob,
        "moe_router_dtype": moe.router_dtype,
        # the one dispatcher that sends tokens of any number, and runs on CPUs too
        "moe_token_dispatcher_type": "alltoall",
        # `router.py` has its own load-balancing loss, which any split of the batch leaves the same
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": moe.aux_loss_coefficient,
    }


def mapping(name: str, model: ModelConfig) -> Mapping:
    """See `Family`; experts are numbered over all expert-parallel ranks."""
    match = _LAYER.fullmatch(name)
    if match is None:
        found = outer_mapping(name, model)
    else:
        layer, part = f"model.layers.{match[1]}", match[2]
        feed_forward = _moe_mapping if model.moe.is_routed(int(match[1])) else mlp_mapping
        found = attention_mapping(layer, part, model, ATTENTION) or feed_forward(layer, part)
    if found is None:
        raise KeyError(f"{model.family} has no parameter {name}")
    return found


def _moe_mapping(layer: str, part: str) -> Mapping | None:
    if part == "pre_mlp_layernorm.weight":
        return copied(f"{layer}.post_attention_layernorm.weight")
    if part == "mlp.router.weight":
        return copied(f"{layer}.mlp.gate.weight")
    match = _EXPERT.fullmatch(part)
    if match is None:
        return None
    expert = f"{layer}.mlp.experts.{match[1]}"
    if match[2] == "linear_fc1":
        return gate_up(f"{expert}.gate_proj.weight", f"{expert}.up_proj.weight")
    return copied(f"{expert}.down_proj.weight")


def hf_config(model: ModelConfig, vocab_size: int) -> Qwen3MoeConfig:
    """See `Family`."""
    moe = model.moe
    return Qwen3MoeConfig(
        **common_hf_keys(model, vocab_size),
        num_experts=moe.num_experts,
        num_experts_per_tok=moe.experts_per_token,
        moe_intermediate_size=moe.ffn_hidden_size,
        norm_topk_prob=moe.norm_topk_prob,
        mlp_only_layers=list(moe.dense_layers),
        decoder_sparse_step=1,
        router_aux_loss_coef=moe.aux_loss_coefficient,
        attention_bias=False,
        use_sliding_window=False,
        architectures=["Qwen3MoeForCausalLM"],
    )


def tensor_shapes(model: ModelConfig, vocab_size: int) -> Iterator[TensorShape]:
    """See `Family`; drawn as the dense families' are, the router like a linear layer."""
    moe, hidden = model.moe, model.hidden_size
    yield EMBEDDING, (vocab_size, hidden), model.embedding_init_std
    for number in range(model.num_layers):
        layer = f"model.layers.{number}"
        yield from attention_shapes(layer, model, ATTENTION)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,), -1
        if not moe.is_routed(number):
            yield from mlp_shapes(f"{layer}.mlp", model.ffn_hidden_size, model)
            continue
        yield f"{layer}.mlp.gate.weight", (moe.num_experts, hidden), hidden**-0.5
        for expert in range(moe.num_experts):
            yield from mlp_shapes(f"{layer}.mlp.experts.{expert}", moe.ffn_hidden_size, model)
    yield from last_shapes(model, vocab_size)
