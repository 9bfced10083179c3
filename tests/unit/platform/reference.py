"""Plain references in float64, and the tiny model that the platform's tests build."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def plain_attention(query: Tensor, key: Tensor, value: Tensor, bounds: Sequence[int], causal: bool = True) -> Tensor:
    """softmax(q k^T / sqrt(h)) v by the formula, within each sequence.

    Args:
        query: [t, b, n, h].
        key: [t, b, g, h].
        value: [t, b, g, h].
        bounds: starts of the sequences, and t.
        causal: whether a token sees only itself and what is before it.

    Returns:
        [t, b, n * h] float64.
    """
    repeats = query.size(2) // key.size(2)
    q = query.double()
    k, v = (x.double().repeat_interleave(repeats, dim=2) for x in (key, value))
    scores = torch.einsum("sbnh,tbnh->bnst", q, k) / q.size(-1) ** 0.5
    positions = torch.arange(q.size(0))
    sequence = torch.bucketize(positions, torch.tensor(bounds[1:]), right=True)
    seen = sequence[:, None] == sequence
    if causal:
        seen &= positions[None] <= positions[:, None]
    weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    return torch.einsum("bnst,tbnh->sbnh", weights, v).flatten(2)


def random_qkv(tokens: int, batch: int, heads: int, groups: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Leaves [t, b, n, 8], [t, b, g, 8], [t, b, g, 8], float32."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(tokens, batch, n, 8, generator=generator) for n in (heads, groups, groups))
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()


def tiny_config(**overrides: Any) -> Any:
    """Megatron's TransformerConfig of a small Qwen2-like model."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    settings: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "ffn_hidden_size": 64,
        "normalization": "RMSNorm",
        "layernorm_epsilon": 1e-6,
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "add_bias_linear": False,
        "add_qkv_bias": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "use_cpu_initialization": True,
    }
    return TransformerConfig(**settings | overrides)


def tiny_gpt(config: Any) -> Any:
    """Megatron's GPTModel of `config` with the platform's layers; vocabulary 64, context 32."""
    from megatron.core.models.gpt import GPTModel

    from megarl.platform.layers.spec import gpt_block_spec

    return GPTModel(
        config,
        gpt_block_spec(config),
        vocab_size=64,
        max_sequence_length=32,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )


def tiny_batch() -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, positions and labels, each [2, 16] int64."""
    text = torch.randint(0, 64, (2, 17), generator=torch.Generator().manual_seed(3))
    return text[:, :-1].contiguous(), torch.arange(16).expand(2, -1).contiguous(), text[:, 1:].contiguous()
