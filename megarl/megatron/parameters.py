"""Parameters of this rank's pipeline stages, under names that all ranks share."""

import re
from collections.abc import Iterator, Sequence

import torch
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.utils import unwrap_model
from torch.nn import Parameter

from megarl.megatron.expert_weights import global_name

_LAYER = re.compile(r"(decoder\.layers\.)(\d+)")


def global_parameters(stages: Sequence[torch.nn.Module]) -> Iterator[tuple[str, Parameter]]:
    """Parameters under their global names: layers and experts counted over all ranks, wrappers' prefixes off."""
    for stage in stages:
        model = unwrap_model(stage)
        offset = get_transformer_layer_offset(model.config, model.vp_stage)
        for name, parameter in model.named_parameters():
            match = _LAYER.match(name)
            own = name if match is None else f"{match[1]}{int(match[2]) + offset}{name[match.end() :]}"
            yield global_name(own, model.config.num_moe_experts or 0), parameter
