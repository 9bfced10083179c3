"""Changes to a transformers model that make it compute less, or more, exactly than it was built to."""

import copy
from typing import Any

import torch

from megarl.diagnose.transformers_model import DTYPES
from megarl.drift.diagnosis.computation import Dtype, Operands
from megarl.platform.fp8.cast import E4M3, amax, quantise, scale_of


def with_head(model: Any, dtype: Dtype) -> Any:
    """The output layer in another precision."""
    changed = copy.deepcopy(model)
    changed.lm_head.to(DTYPES[dtype])
    changed.lm_head.register_forward_pre_hook(lambda _, inputs: (inputs[0].to(DTYPES[dtype]),))
    return changed


def with_residual(model: Any, dtype: Dtype) -> Any:
    """The residual stream in another precision: each sum is rounded to it, or is not."""
    changed = copy.deepcopy(model)
    stream, own = DTYPES[dtype], model.dtype
    changed.model.embed_tokens.register_forward_hook(lambda _module, _inputs, output: output.to(stream))
    changed.lm_head.register_forward_pre_hook(lambda _, inputs: (inputs[0].to(own),))
    # transformers forms the angles in the dtype of the embedding's output, which is the stream's here
    changed.model.rotary_emb.register_forward_pre_hook(lambda _, inputs: (inputs[0].to(own), *inputs[1:]))
    for layer in changed.model.layers:
        layer.forward = _LayerWithStream(layer, stream, own)
    return changed


class _LayerWithStream:
    """A decoder layer's forward pass with casts around its two parts."""

    def __init__(self, layer: Any, stream: torch.dtype, own: torch.dtype) -> None:
        self._layer, self._stream, self._own = layer, stream, own

    def __call__(self, hidden_states: Any, **kwargs: Any) -> Any:
        layer = self._layer
        normed = layer.input_layernorm(hidden_states).to(self._own)
        attended, _ = layer.self_attn(hidden_states=normed, **kwargs)
        hidden_states = (hidden_states + attended).to(self._stream)
        fed = layer.mlp(layer.post_attention_layernorm(hidden_states).to(self._own))
        return (hidden_states + fed).to(self._stream)


def with_operands(model: Any, kind: Operands) -> Any:
    """Every linear layer but the last with operands in E4M3 or INT8: a scale a tensor (fp8_tensor), or a row."""
    changed = copy.deepcopy(model)
    dims = None if kind == "fp8_tensor" else (1,)

    def rounded(x: Any) -> Any:
        flat = x.reshape(-1, x.shape[-1])
        if kind == "int8_row":
            # padded places may hold zeros alone
            largest = flat.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-30)
            wide = torch.round(flat.float() * (127 / largest)) * (largest / 127)
        else:
            wide = quantise(flat, scale_of(amax(flat, dims), E4M3), E4M3).dequantise()
        return wide.to(x.dtype).view(x.shape)

    for module in changed.model.layers.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = rounded(module.weight.data)
            module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0]),))
    return changed
