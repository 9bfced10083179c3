"""The same network in transformers: another implementation to compare with."""

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from megarl.config.model import ModelConfig
from megarl.megatron.batch import TrainBatch
from megarl.megatron.models import FAMILIES
from megarl.megatron.weights import ReadTensor
from megarl.rollout.hf_parameters import published_parameters, published_parts
from tests.unit.megatron.tiny import VOCAB


def tensor_names(model: ModelConfig) -> list[str]:
    """Names of all Hugging Face tensors of the model."""
    return [name for name, _, _ in FAMILIES[model.family].tensor_shapes(model, VOCAB)]


def hf_model(model: ModelConfig, read: ReadTensor, dtype: torch.dtype) -> PreTrainedModel:
    """The family's own network in transformers with these weights."""
    config = FAMILIES[model.family].hf_config(model, VOCAB)
    network = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype)
    parameters = published_parameters(network)
    assert sorted(parameters) == sorted(tensor_names(model))
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(read(name))
    return network


def hf_gradients(network: PreTrainedModel) -> dict[str, Tensor]:
    """The gradient that each published tensor has got."""
    grads = {name: parameter.grad for name, parameter in network.named_parameters() if parameter.grad is not None}
    return {name: part for own, grad in grads.items() for name, part in published_parts(own, grad)}


def hf_log_probs(network: PreTrainedModel, batch: TrainBatch, temperature: float = 1.0) -> Tensor:
    """Log-probs of the targets [B, T], masked or not, in the network's dtype, with gradients.

    Prompts begin at column 0 and padding is on the right, so causality alone hides it.
    """
    logits_BTV: Tensor = network(batch.tokens_BT, attention_mask=None).logits
    return (logits_BTV / temperature).log_softmax(-1).gather(-1, batch.targets_BT[..., None])[..., 0]
