"""Qwen3, dense: normalised queries and keys, no biases, and heads whose size the hidden size does not give."""

from collections.abc import Iterator
from typing import Any

from transformers import Qwen3Config

from megarl.config.model import ModelConfig
from megarl.megatron.models.dense import Attention, common_hf_keys, dense_mapping, dense_shapes
from megarl.megatron.models.family import TensorShape
from megarl.megatron.models.mapping import Mapping

ATTENTION = Attention(qkv_bias=False, qk_norm=True)


def transformer_options(model: ModelConfig) -> dict[str, Any]:
    """See `Family`."""
    return ATTENTION.transformer_options()


def mapping(name: str, model: ModelConfig) -> Mapping:
    """See `Family`."""
    return dense_mapping(name, model, ATTENTION)


def hf_config(model: ModelConfig, vocab_size: int) -> Qwen3Config:
    """See `Family`."""
    return Qwen3Config(
        **common_hf_keys(model, vocab_size),
        attention_bias=False,
        use_sliding_window=False,
        architectures=["Qwen3ForCausalLM"],
    )


def tensor_shapes(model: ModelConfig, vocab_size: int) -> Iterator[TensorShape]:
    """See `Family`."""
    return dense_shapes(model, vocab_size, ATTENTION)
