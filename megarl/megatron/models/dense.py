"""What the dense families share: a decoder of RMSNorm, grouped-query attention with RoPE, and SwiGLU.

A family with another feed-forward layer, such as routed experts, takes `attention_mapping`, `attention_shapes` and
`outer_mapping` from here and brings its own for the rest.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from megarl.config.model import ModelConfig
from megarl.megatron.models.family import TensorShape
from megarl.megatron.models.mapping import Mapping, copied, gate_up, query_key_value

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_OUTER = {"embedding.word_embeddings.weight": EMBEDDING, "decoder.final_layernorm.weight": "model.norm.weight"}


@dataclass(frozen=True)
class Attention:
    """How a family's attention differs.

    Attributes:
        qkv_bias: whether the query, key and value projections have a bias.
        qk_norm: whether queries and keys are normalised head by head, with one weight of the head's size.
    """

    qkv_bias: bool
    qk_norm: bool

    def transformer_options(self) -> dict[str, Any]:
        """The same in Megatron-core's words."""
        return {"add_qkv_bias": self.qkv_bias, "qk_layernorm": self.qk_norm}


def dense_mapping(name: str, model: ModelConfig, attention: Attention) -> Mapping:
    """See `Family.mapping`."""
    if match := _LAYER.fullmatch(name):
        layer, part = f"model.layers.{match[1]}", match[2]
        found = attention_mapping(layer, part, model, attention) or mlp_mapping(layer, part)
    else:
        found = outer_mapping(name, model)
    if found is None:
        raise KeyError(f"{model.family} has no parameter {name}")
    return found


def outer_mapping(name: str, model: ModelConfig) -> Mapping | None:
    """Embedding, last norm and head; None for other names."""
    if name == "output_layer.weight":
        return copied(EMBEDDING if model.tie_embeddings else HEAD, is_vocabulary=True)
    hf_name = _OUTER.get(name)
    return None if hf_name is None else copied(hf_name, is_vocabulary=hf_name == EMBEDDING)


def attention_mapping(layer: str, part: str, model: ModelConfig, attention: Attention) -> Mapping | None:
    """A layer's attention with the norm before it; None for other parts and for what the family's attention lacks."""
    block = f"{layer}.self_attn"
    match part:
        case "self_attention.linear_qkv.layer_norm_weight":
            return copied(f"{layer}.input_layernorm.weight")
        case "self_attention.linear_qkv.weight":
            return _projections(block, "weight", model)
        case "self_attention.linear_qkv.bias" if attention.qkv_bias:
            return _projections(block, "bias", model)
        case "self_attention.q_layernorm.weight" if attention.qk_norm:
            return copied(f"{block}.q_norm.weight")
        case "self_attention.k_layernorm.weight" if attention.qk_norm:
            return copied(f"{block}.k_norm.weight")
        case "self_attention.linear_proj.weight":
            return copied(f"{block}.o_proj.weight")
    return None


def _projections(block: str, kind: str, model: ModelConfig) -> Mapping:
    q, k, v = (f"{block}.{part}_proj.{kind}" for part in "qkv")
    return query_key_value((q, k, v), model)


def mlp_mapping(layer: str, part: str) -> Mapping | None:
    """A layer's dense feed-forward layer with the norm before it; None for other parts."""
    match part:
        case "mlp.linear_fc1.layer_norm_weight":
            return copied(f"{layer}.post_attention_layernorm.weight")
        case "mlp.linear_fc1.weight":
            return gate_up(f"{layer}.mlp.gate_proj.weight", f"{layer}.mlp.up_proj.weight")
        case "mlp.linear_fc2.weight":
            return copied(f"{layer}.mlp.down_proj.weight")
    return None


def dense_shapes(model: ModelConfig, vocab_size: int, attention: Attention) -> Iterator[TensorShape]:
    """See `Family.tensor_shapes`.

    Linear weights are drawn with 1 / sqrt(fan in), those that write to the residual stream 1 / sqrt(2 layers)
    smaller (Radford et al. 2019, 'Language Models are Unsupervised Multitask Learners', section 2.3).
    """
    yield EMBEDDING, (vocab_size, model.hidden_size), model.embedding_init_std
    for number in range(model.num_layers):
        layer = f"model.layers.{number}"
        yield from attention_shapes(layer, model, attention)
        yield f"{layer}.post_attention_layernorm.weight", (model.hidden_size,), -1
        yield from mlp_shapes(f"{layer}.mlp", model.ffn_hidden_size, model)
    yield from last_shapes(model, vocab_size)


def last_shapes(model: ModelConfig, vocab_size: int) -> Iterator[TensorShape]:
    """The last norm, and the head where it is a tensor of its own."""
    yield "model.norm.weight", (model.hidden_size,), -1
    if not model.tie_embeddings:
        yield HEAD, (vocab_size, model.hidden_size), model.hidden_size**-0.5


def mlp_shapes(block: str, ffn: int, model: ModelConfig) -> Iterator[TensorShape]:
    """A SwiGLU layer of a width."""
    hidden = model.hidden_size
    yield f"{block}.gate_proj.weight", (ffn, hidden), hidden**-0.5
    yield f"{block}.up_proj.weight", (ffn, hidden), hidden**-0.5
    yield f"{block}.down_proj.weight", (hidden, ffn), ffn**-0.5 * residual_scale(model)


def attention_shapes(layer: str, model: ModelConfig, attention: Attention) -> Iterator[TensorShape]:
    """A layer's attention with the norm before it."""
    hidden, head = model.hidden_size, model.head_dim
    queries, keys = model.num_attention_heads * head, model.num_query_groups * head
    block = f"{layer}.self_attn"
    yield f"{layer}.input_layernorm.weight", (hidden,), -1
    for part, rows in (("q", queries), ("k", keys), ("v", keys)):
        yield f"{block}.{part}_proj.weight", (rows, hidden), hidden**-0.5
        if attention.qkv_bias:
            yield f"{block}.{part}_proj.bias", (rows,), 0
    if attention.qk_norm:
        yield f"{block}.q_norm.weight", (head,), -1
        yield f"{block}.k_norm.weight", (head,), -1
    yield f"{block}.o_proj.weight", (hidden, queries), queries**-0.5 * residual_scale(model)


def residual_scale(model: ModelConfig) -> float:
    """By how much smaller a weight is drawn that writes to the residual stream."""
    return 1 / math.sqrt(2 * model.num_layers)


def common_hf_keys(model: ModelConfig, vocab_size: int) -> dict[str, Any]:
    """The keys of config.json that all families share."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_query_groups,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_position_embeddings,
        "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": model.tie_embeddings,
        # transformers 5 reads rope_parameters, transformers 4 and the engines' loaders rope_theta
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_theta": model.rope_theta, **_rope_scaling(model)},
    }


def _rope_scaling(model: ModelConfig) -> dict[str, Any]:
    if model.rope_scaling == "none":
        return {"rope_type": "default"}
    return {
        "rope_type": model.rope_scaling,
        "factor": model.rope_scaling_factor,
        "low_freq_factor": model.rope_low_freq_factor,
        "high_freq_factor": model.rope_high_freq_factor,
        "original_max_position_embeddings": model.rope_original_context,
    }
