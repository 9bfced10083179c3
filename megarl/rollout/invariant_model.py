"""The embedded engine's forward pass on batch-invariant arithmetic, over a transformers model's weights.

It does to each token what the trainer's batch-invariant layers do (`megarl.platform.layers.invariant`), by the same
functions on the same dtypes: so that the same ids give the same bits, whether they are decoded over a cache, beside
other responses and behind padding, or read at once.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from megarl.platform.invariant.attention import attention
from megarl.platform.invariant.exact import weight_grid
from megarl.platform.invariant.linear import linear_on_grid
from megarl.platform.invariant.rotary import Rotary
from megarl.platform.invariant.rows import rms_norm, silu


@dataclass(frozen=True)
class Invariance:
    """What the trainer computes by.

    Attributes:
        rotary: its rotary embedding.
        dtype: of its weights and activations.
        fp32_head: whether the output layer's product is formed in fp32.
        fp32_residual: whether the residual stream is.
    """

    rotary: Rotary
    dtype: torch.dtype
    fp32_head: bool
    fp32_residual: bool


class InvariantModel:
    """A dense decoder's forward pass.

    Holds an fp64 grid of each linear weight beside the model's own, 8 bytes a number.
    """

    def __init__(self, model: Any, invariance: Invariance) -> None:
        """Args: model: transformers' Llama, Qwen2 or Qwen3, in the trainer's dtype. invariance: the trainer's."""
        self._model, self._by = model, invariance
        self._grids: dict[Any, Tensor] = {}

    def take_weights(self) -> None:
        """Reads the model's weights, which have changed."""
        linears = [part for part in self._model.modules() if isinstance(part, torch.nn.Linear)]
        self._grids = {part: weight_grid(part.weight) for part in linears}

    def logits(self, ids_BT: Tensor, positions_BT: Tensor, mask_B1TS: Tensor, cache: DynamicCache) -> Tensor:
        """Logits of the token after the last one, [B, V].

        Args:
            ids_BT: int64.
            positions_BT: int64, of those tokens.
            mask_B1TS: bool, the places of cache and tokens that each token sees.
            cache: of the tokens before; these are added.
        """
        inner = self._model.model
        stream = torch.float32 if self._by.fp32_residual else self._by.dtype
        hidden_BTH = F.embedding(ids_BT, inner.embed_tokens.weight).to(stream)
        for number, layer in enumerate(inner.layers):
            normed = _norm(layer.input_layernorm, hidden_BTH)
            attended = self._attend(layer.self_attn, number, normed, positions_BT, mask_B1TS, cache)
            hidden_BTH = hidden_BTH + attended.to(stream)
            normed = _norm(layer.post_attention_layernorm, hidden_BTH)
            mlp = layer.mlp
            inside = silu(self._linear(mlp.gate_proj, normed)) * self._linear(mlp.up_proj, normed)
            hidden_BTH = hidden_BTH + self._linear(mlp.down_proj, inside).to(stream)
        last_BH = _norm(inner.norm, hidden_BTH[:, -1])
        if self._by.fp32_head:
            last_BH = last_BH.float()
        return self._linear(self._model.lm_head, last_BH)

    def _attend(
        self, block: Any, layer: int, x_BTH: Tensor, positions_BT: Tensor, mask_B1TS: Tensor, cache: DynamicCache
    ) -> Tensor:
        projected = (self._linear(part, x_BTH) for part in (block.q_proj, block.k_proj, block.v_proj))
        q, k, v = (x.unflatten(-1, (-1, block.head_dim)) for x in projected)
        if hasattr(block, "q_norm"):
            q, k = _norm(block.q_norm, q), _norm(block.k_norm, k)
        rotary = self._by.rotary
        q, k = (rotary.turn(x.transpose(1, 2), positions_BT) for x in (q, k))
        keys, values = cache.update(k, v.transpose(1, 2), layer)
        output = attention(q, keys, values, mask_B1TS, None, rotary.context)
        return self._linear(block.o_proj, output.transpose(1, 2).flatten(2))

    def _linear(self, part: torch.nn.Linear, x: Tensor) -> Tensor:
        return linear_on_grid(x, self._grids[part], part.bias)


def _norm(norm: Any, x: Tensor) -> Tensor:
    return rms_norm(x, norm.weight, norm.variance_epsilon)
