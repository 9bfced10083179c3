"""Qwen2 and Qwen2.5, dense: biases on the query, key and value projections."""

from collections.abc import Iterator
from typing import Any

from transformers import Qwen2Config

from megarl.config.model import ModelConfig
from megarl.megatron.models.dense import Attention, common_hf_keys, dense_mapping, dense_shapes
from megarl.megatron.models.family import TensorShape
from megarl.megatron.models.mapping import Mapping

ATTENTION = Attention(qkv_bias=True, qk_norm=False)


def transformer_options(model: ModelConfig) -> dict[str, Any]:
    """See `Family`."""
    return ATTENTION.transformer_options()


def mapping(name: str, model: ModelConfig) -> Mapping:
    """See `Family`."""
    return dense_mapping(name, model, ATTENTION)


def hf_config(model: ModelConfig, vocab_size: int) -> Qwen2Config:
    """See `Family`."""
    return Qwen2Config(
        **common_hf_keys(model, vocab_size), use_sliding_window=False, architectures=["Qwen2ForCausalLM"]
    )


def tensor_shapes(model: ModelConfig, vocab_size: int) -> Iterator[TensorShape]:
    """See `Family`."""
    return dense_shapes(model, vocab_size, ATTENTION)
