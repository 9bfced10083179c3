"""Qwen2 and Qwen2.5, dense: the Hugging Face names of Megatron-core's parameters, and the engine's configuration."""

import math
import re
from collections.abc import Iterator

from transformers import Qwen2Config

from megarl.config.model import ModelConfig
from megarl.megatron.models.mapping import Mapping, copied, gate_up, query_key_value

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")


def mapping(name: str, model: ModelConfig) -> Mapping:
    """The conversion of one parameter.

    Args:
        name: Megatron-core's name, with the layer's number counted over all pipeline stages.

    Raises:
        KeyError: the family has no such parameter.
    """
    if name == "embedding.word_embeddings.weight":
        return copied("model.embed_tokens.weight", is_vocabulary=True)
    if name == "output_layer.weight":
        tied = "model.embed_tokens.weight" if model.tie_embeddings else "lm_head.weight"
        return copied(tied, is_vocabulary=True)
    if name == "decoder.final_layernorm.weight":
        return copied("model.norm.weight")
    if match := _LAYER.fullmatch(name):
        return _layer_mapping(f"model.layers.{match[1]}", match[2], model)
    raise KeyError(f"qwen2 has no parameter {name}")


def _layer_mapping(layer: str, name: str, model: ModelConfig) -> Mapping:
    attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
    match name:
        case "self_attention.linear_qkv.layer_norm_weight":
            return copied(f"{layer}.input_layernorm.weight")
        case "self_attention.linear_qkv.weight" | "self_attention.linear_qkv.bias":
            kind = name.rpartition(".")[2]
            q, k, v = (f"{attention}.{part}_proj.{kind}" for part in "qkv")
            return query_key_value((q, k, v), model)
        case "self_attention.linear_proj.weight":
            return copied(f"{attention}.o_proj.weight")
        case "mlp.linear_fc1.layer_norm_weight":
            return copied(f"{layer}.post_attention_layernorm.weight")
        case "mlp.linear_fc1.weight":
            return gate_up(f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight")
        case "mlp.linear_fc2.weight":
            return copied(f"{mlp}.down_proj.weight")
    raise KeyError(f"a qwen2 layer has no parameter {name}")


def hf_config(model: ModelConfig, vocab_size: int) -> Qwen2Config:
    """The configuration that transformers, vLLM and SGLang build the same network from."""
    return Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_query_groups,
        head_dim=model.head_dim,
        max_position_embeddings=model.max_position_embeddings,
        rms_norm_eps=model.norm_eps,
        tie_word_embeddings=model.tie_embeddings,
        # transformers 5 reads rope_parameters, transformers 4 and the engines' loaders rope_theta
        rope_theta=model.rope_theta,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_theta},
        use_sliding_window=False,
        architectures=["Qwen2ForCausalLM"],
    )


def tensor_shapes(model: ModelConfig, vocab_size: int) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Every Hugging Face tensor: its name, its shape, and the standard deviation of its random initialisation.

    Linear weights are drawn with 1 / sqrt(fan in), those that write to the residual stream 1 / sqrt(2 layers)
    smaller (Radford et al. 2019, 'Language Models are Unsupervised Multitask Learners', section 2.3). A standard
    deviation of 0 marks a bias (zeros), -1 a norm (ones).
    """
    hidden, ffn, head = model.hidden_size, model.ffn_hidden_size, model.head_dim
    queries, keys = model.num_attention_heads * head, model.num_query_groups * head
    residual = 1 / math.sqrt(2 * model.num_layers)
    yield "model.embed_tokens.weight", (vocab_size, hidden), model.embedding_init_std
    for layer in range(model.num_layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden,), -1
        for part, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{prefix}.self_attn.{part}_proj.weight", (rows, hidden), hidden**-0.5
            yield f"{prefix}.self_attn.{part}_proj.bias", (rows,), 0
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, queries), queries**-0.5 * residual
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,), -1
        yield f"{prefix}.mlp.gate_proj.weight", (ffn, hidden), hidden**-0.5
        yield f"{prefix}.mlp.up_proj.weight", (ffn, hidden), hidden**-0.5
        yield f"{prefix}.mlp.down_proj.weight", (hidden, ffn), ffn**-0.5 * residual
    yield "model.norm.weight", (hidden,), -1
    if not model.tie_embeddings:
        yield "lm_head.weight", (vocab_size, hidden), hidden**-0.5
