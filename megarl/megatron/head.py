"""The output layer's product, put off until the loss: what the model returns is its hidden states, not logits.

GPTModel would form logits of every position at once, [tokens, vocabulary]. Megatron-core has no switch for that in all
supported versions, so the output layer's own forward is replaced; its weight, and every name, stay.
"""

from functools import partial
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.utils import get_model_config, unwrap_model
from torch import Tensor

_MARK, _IN_FP32 = "megarl_deferred", "megarl_in_fp32"


def defer_head(model: GPTModel, *, in_fp32: bool = False) -> None:
    """Makes this stage return hidden states [b, s, h] in place of logits; nothing where it has no output layer.

    Args:
        model: the stage.
        in_fp32: whether the product that is put off is then formed in fp32. `deferred_weight` and `head_input` convert;
            the weight takes an fp32 copy for as long as a micro-batch.
    """
    if not model.post_process:
        return
    layer = model.output_layer
    layer.forward = partial(_hidden_states, model.config.sequence_parallel)
    setattr(layer, _MARK, True)
    setattr(layer, _IN_FP32, in_fp32)


def deferred_weight(chunk: torch.nn.Module) -> Tensor | None:
    """This rank's rows of the output layer's weight, [V / tensor, h]; None for a model that returns logits.

    Its dtype is that of the product.
    """
    model = unwrap_model(chunk)
    if not getattr(model.output_layer, _MARK, False):
        return None
    weight: Tensor = (
        model.shared_embedding_or_output_weight()
        if model.share_embeddings_and_output_weights
        else model.output_layer.weight
    )
    return weight.float() if getattr(model.output_layer, _IN_FP32) else weight


def head_input(chunk: torch.nn.Module, hidden_MH: Tensor) -> Tensor:
    """The hidden states in the product's dtype; their gradients are added up over the tensor ranks on the way back.

    Under sequence parallelism gathering them has seen to that.
    """
    if getattr(unwrap_model(chunk).output_layer, _IN_FP32):
        hidden_MH = hidden_MH.float()
    if get_model_config(chunk).sequence_parallel:
        return hidden_MH
    # the reduction is in place, and lost on a gradient that is not contiguous: hence here, and not before the transpose
    summed: Tensor = copy_to_tensor_model_parallel_region(hidden_MH)
    return summed


def _hidden_states(sequence_parallel: bool, hidden: Tensor, **_: Any) -> tuple[Tensor, None]:
    """[s, b, h] of all the sequence's tokens."""
    return (gather_from_sequence_parallel_region(hidden) if sequence_parallel else hidden), None
