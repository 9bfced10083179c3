"""Rotary frequencies for contexts longer than a model was first trained on."""

import math

import torch
from torch import Tensor

from megarl.config.model import ModelConfig
from megarl.platform.invariant.rotary import Rotary


def llama3_frequencies(frequencies: Tensor, model: ModelConfig) -> Tensor:
    """The scaling of Llama 3.1 (Meta's llama-models, `apply_scaling`; transformers' rope_type 'llama3').

    With t the turns that a frequency makes over the original context, it is divided by the factor where t is below
    `rope_low_freq_factor`, kept where t is above `rope_high_freq_factor`, and in between is the mean of the two with
    the kept one weighted by (t - low) / (high - low).

    Args:
        frequencies: fp32 [head_dim / 2], radians a token.
        model: its `rope_...` keys.

    Returns:
        fp32 [head_dim / 2].
    """
    low, high = model.rope_low_freq_factor, model.rope_high_freq_factor
    turns = model.rope_original_context * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return torch.lerp(frequencies / model.rope_scaling_factor, frequencies, kept)


def rotary_of(model: ModelConfig, device: torch.device) -> Rotary:
    """The recipe's rotary embedding as a table, in Megatron-core's and transformers' frequencies."""
    places = torch.arange(0, model.head_dim, 2, dtype=torch.float32)
    frequencies = 1.0 / model.rope_theta ** (places / model.head_dim)
    if model.rope_scaling == "llama3":
        frequencies = llama3_frequencies(frequencies, model)
    return Rotary(frequencies.to(device), model.max_position_embeddings)
