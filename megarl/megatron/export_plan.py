"""What leaves a Megatron-core model, in which order, and who holds it: found once, so that no export asks again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from megarl.config.model import ModelConfig
from megarl.megatron.expert_weights import is_expert, names_of_ranks, tensor_group
from megarl.megatron.models import FAMILIES
from megarl.megatron.models.mapping import Mapping
from megarl.megatron.parameters import global_parameters
from megarl.megatron.precision import whole_precision

Spec = tuple[str, tuple[int, ...], torch.dtype]
"""A Hugging Face tensor's name, shape and dtype."""


@dataclass(frozen=True)
class Held:
    """One parameter of a pipeline stage.

    Attributes:
        name: Megatron-core's, global, on the ranks of that stage that share a model replica's first experts.
        shape: of what is gathered: the parameter over all tensor ranks, stacked over expert-parallel ranks.
        dtype: of the values.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Gathering:
    """One parameter's way out.

    Attributes:
        held: what is gathered. Its name is this rank's own where this rank is on the stage.
        stage: pipeline rank that holds it.
        mappings: how each expert-parallel rank's piece becomes Hugging Face tensors, by rank.
    """

    held: Held
    stage: int
    mappings: tuple[Mapping, ...]


@dataclass(frozen=True)
class ExportPlan:
    """An export of a model under a layout.

    Attributes:
        gatherings: parameters, in their order; the same number on every rank.
        specs: the tensors that come of them, in their order; the same on every rank.
        ranks: global ranks of this rank's pipeline group, by stage.
        stage: this rank's.
    """

    gatherings: tuple[Gathering, ...]
    specs: tuple[Spec, ...]
    ranks: tuple[int, ...]
    stage: int

    @property
    def largest(self) -> int:
        """Bytes of the largest parameter, gathered."""
        return max(gathering.held.dtype.itemsize * _numel(gathering.held.shape) for gathering in self.gatherings)


def plan_export(stages: Sequence[torch.nn.Module], model: ModelConfig, vocab_size: int) -> ExportPlan:
    """Finds the plan. Collective over each pipeline group: the one place where objects are exchanged.

    A tied head is left out; it is the embedding.

    Args:
        stages: this rank's.
        model: the recipe's model.
        vocab_size: tokens, without the rows that Megatron-core pads.
    """
    family = FAMILIES[model.family]
    shapes = {name: shape for name, shape, _ in family.tensor_shapes(model, vocab_size)}
    ranks = tuple(dist.get_process_group_ranks(parallel_state.get_pipeline_model_parallel_group()))
    own = list(_held(stages, model))
    by_stage: list[list[Held]] = [own]
    if len(ranks) > 1:
        by_stage = [[] for _ in ranks]
        dist.all_gather_object(by_stage, own, group=parallel_state.get_pipeline_model_parallel_group())
    gatherings = [
        Gathering(
            held,
            stage,
            tuple(family.mapping(name, model) for name in names_of_ranks(held.name, model.moe.num_experts)),
        )
        for stage, all_held in enumerate(by_stage)
        for held in all_held
    ]
    specs = [
        (name, shapes[name], gathering.held.dtype)
        for gathering in gatherings
        for mapping in gathering.mappings
        for name in mapping.hf_names
    ]
    return ExportPlan(tuple(gatherings), tuple(specs), ranks, parallel_state.get_pipeline_model_parallel_rank())


def _held(stages: Sequence[torch.nn.Module], model: ModelConfig) -> Iterator[Held]:
    for name, parameter in global_parameters(stages):
        if name == "output_layer.weight" and model.tie_embeddings:
            continue
        shape = list(parameter.shape)
        if getattr(parameter, "tensor_model_parallel", False):
            shape[parameter.partition_dim] *= tensor_group(name).size()  # type: ignore[attr-defined]
        experts = parallel_state.get_expert_model_parallel_world_size() if is_expert(name) else 1
        yield Held(name, (experts, *shape), whole_precision(parameter).dtype)


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
