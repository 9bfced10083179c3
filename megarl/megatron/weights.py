"""Weights in and out of a Megatron-core model, in Hugging Face names, under any tensor and pipeline layout."""

import hashlib
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor
from torch.nn import Parameter

from megarl.config.model import ModelConfig
from megarl.megatron.expert_weights import gather_over_ranks, shards_in_turn, tensor_group
from megarl.megatron.export_plan import ExportPlan, Gathering
from megarl.megatron.models import FAMILIES
from megarl.megatron.models.mapping import Mapping
from megarl.megatron.parameters import global_parameters
from megarl.megatron.precision import whole_precision
from megarl.platform.platform import current

ReadTensor = Callable[[str], Tensor]
"""Gives the full Hugging Face tensor of that name."""


def load_weights(
    stages: Sequence[torch.nn.Module],
    model: ModelConfig,
    vocab_size: int,
    read: ReadTensor,
    *,
    without: str | None = None,
) -> None:
    """Fills this rank's parameters. No rank waits for another: each reads what its shard is cut from.

    Rows of the embedding and of the head from `vocab_size` on are left out: published models pad their vocabulary.
    Parameters whose names start with `without` stay as they are.

    Raises:
        ValueError: a tensor has another shape than the recipe's model.
    """
    family = FAMILIES[model.family]
    shapes = {name: shape for name, shape, _ in family.tensor_shapes(model, vocab_size)}

    def checked(name: str, mapping: Mapping) -> Tensor:
        full = read(name)[: vocab_size if mapping.is_vocabulary else None]
        if full.shape != shapes[name]:
            raise ValueError(f"{name}: the weights give {tuple(full.shape)}, the model has {shapes[name]}")
        return full

    with torch.no_grad():
        for name, parameter in global_parameters(stages):
            if without is not None and name.startswith(without):
                continue
            mapping = family.mapping(name, model)
            full = mapping.merge([checked(hf_name, mapping) for hf_name in mapping.hf_names])
            parameter.copy_(_shard(full, parameter, mapping, tensor_group(name)))


def export_weights(
    stages: Sequence[torch.nn.Module], plan: ExportPlan, vocab_size: int
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the model, one parameter at a time, on every rank. Collective: all ranks must drain it.

    Only weights travel: what they are and where they go is in the plan. Memory is one gathered parameter and one shard
    of it, and what is yielded where that is not a view of the parameter.

    Yields:
        Hugging Face name and full, detached tensor, in the order of `plan.specs`; a tied head is yielded once, as the
        embedding.
    """
    local = dict(global_parameters(stages))
    for gathering in plan.gatherings:
        name, here = gathering.held.name, gathering.stage == plan.stage
        full = None
        if here:
            full = gather_over_ranks(_gather(local[name], gathering.mappings[0], tensor_group(name)), name)
        if len(plan.ranks) > 1:
            full = _broadcast(full, gathering, plan)
        assert full is not None
        for mapping, tensor in zip(gathering.mappings, full, strict=True):
            split = mapping.split(tensor[:vocab_size] if mapping.is_vocabulary else tensor)
            yield from zip(mapping.hf_names, split, strict=True)


def random_weights(model: ModelConfig, vocab_size: int, seed: int) -> ReadTensor:
    """Reads a random initialisation; each tensor has its own generator, so every layout starts from the same."""
    shapes = {name: (shape, std) for name, shape, std in FAMILIES[model.family].tensor_shapes(model, vocab_size)}

    def read(name: str) -> Tensor:
        shape, std = shapes[name]
        if std <= 0:
            return torch.ones(shape) if std < 0 else torch.zeros(shape)
        digest = hashlib.sha256(f"{seed}/initialisation/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        tensor: Tensor = torch.randn(shape, generator=generator) * std
        return tensor

    return read


def _shard(full: Tensor, parameter: Parameter, mapping: Mapping, group: dist.ProcessGroup) -> Tensor:
    size, rank = group.size(), group.rank()
    if not getattr(parameter, "tensor_model_parallel", False):
        return full
    dim = _partition_dim(parameter)
    if mapping.is_vocabulary:
        padding = parameter.shape[0] * size - full.shape[0]
        full = torch.nn.functional.pad(full, (0, 0, 0, padding))
    parts = full.chunk(mapping.stacked, dim)
    return torch.cat([part.chunk(size, dim)[rank] for part in parts], dim)


def _gather(parameter: Parameter, mapping: Mapping, group: dist.ProcessGroup) -> Tensor:
    size = group.size()
    data = whole_precision(parameter)
    if size == 1 or not getattr(parameter, "tensor_model_parallel", False):
        return data
    dim = _partition_dim(parameter)
    full = data.new_empty([length * size if axis == dim else length for axis, length in enumerate(data.shape)])
    pieces = [part.chunk(size, dim) for part in full.chunk(mapping.stacked, dim)]
    for rank, shard in enumerate(shards_in_turn(data, group)):
        for part, piece in zip(pieces, shard.chunk(mapping.stacked, dim), strict=True):
            part[rank].copy_(piece)
    return full


def _partition_dim(parameter: Parameter) -> int:
    """The dimension that Megatron-core splits over tensor ranks; it notes it on the parameter."""
    dim: int = parameter.partition_dim  # type: ignore[attr-defined]
    return dim


def _broadcast(full: Tensor | None, gathering: Gathering, plan: ExportPlan) -> Tensor:
    if full is None:
        full = torch.empty(gathering.held.shape, dtype=gathering.held.dtype, device=current().device)
    full = full.contiguous()
    group = parallel_state.get_pipeline_model_parallel_group()
    dist.broadcast(full, plan.ranks[gathering.stage], group=group)
    return full
