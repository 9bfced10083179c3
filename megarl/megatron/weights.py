"""Weights in and out of a Megatron-core model, in Hugging Face names, under any tensor and pipeline layout."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.utils import unwrap_model
from torch import Tensor
from torch.nn import Parameter

from megarl.config.model import ModelConfig
from megarl.megatron.expert_weights import gather_over_ranks, global_name, names_of_ranks, tensor_group
from megarl.megatron.models import FAMILIES
from megarl.megatron.models.mapping import Mapping
from megarl.megatron.precision import whole_precision
from megarl.platform.platform import current

ReadTensor = Callable[[str], Tensor]
"""Gives the full Hugging Face tensor of that name."""

_LAYER = re.compile(r"(decoder\.layers\.)(\d+)")


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
        for name, parameter in _parameters(stages):
            if without is not None and name.startswith(without):
                continue
            mapping = family.mapping(name, model)
            full = mapping.merge([checked(hf_name, mapping) for hf_name in mapping.hf_names])
            parameter.copy_(_shard(full, parameter, mapping, tensor_group(name)))


def export_weights(
    stages: Sequence[torch.nn.Module], model: ModelConfig, vocab_size: int
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the model, one parameter at a time, on every rank. Collective: all ranks must drain it.

    Yields:
        Hugging Face name and full, detached tensor; a tied head is yielded once, as the embedding.
    """
    local = dict(_parameters(stages))
    ranks = dist.get_process_group_ranks(parallel_state.get_pipeline_model_parallel_group())
    stage = parallel_state.get_pipeline_model_parallel_rank()
    for source, names in enumerate(_names_by_stage(list(local), len(ranks))):
        for name in names:
            if name == "output_layer.weight" and model.tie_embeddings:
                continue
            owned = names_of_ranks(name, model.moe.num_experts)
            mappings = [FAMILIES[model.family].mapping(one, model) for one in owned]
            full = None
            if source == stage:
                full = gather_over_ranks(_gather(local[name], mappings[0], tensor_group(name)), name)
            if len(ranks) > 1:
                full = _broadcast(full, ranks[source])
            assert full is not None
            for mapping, tensor in zip(mappings, full, strict=True):
                split = mapping.split(tensor[:vocab_size] if mapping.is_vocabulary else tensor)
                yield from zip(mapping.hf_names, split, strict=True)


def export_specs(
    stages: Sequence[torch.nn.Module], model: ModelConfig, vocab_size: int
) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Name, shape and dtype of each tensor that `export_weights` gives, in its order. Collective; moves no weights."""
    shapes = {name: shape for name, shape, _ in FAMILIES[model.family].tensor_shapes(model, vocab_size)}
    local = dict(_parameters(stages))
    dtypes = {name: whole_precision(parameter).dtype for name, parameter in local.items()}
    held: list[dict[str, torch.dtype]] = [dtypes]
    if parallel_state.get_pipeline_model_parallel_world_size() > 1:
        held = [{} for _ in range(parallel_state.get_pipeline_model_parallel_world_size())]
        dist.all_gather_object(held, dtypes, group=parallel_state.get_pipeline_model_parallel_group())
    specs = []
    for stage in held:
        for name, dtype in stage.items():
            if name == "output_layer.weight" and model.tie_embeddings:
                continue
            for one in names_of_ranks(name, model.moe.num_experts):
                for hf_name in FAMILIES[model.family].mapping(one, model).hf_names:
                    specs.append((hf_name, shapes[hf_name], dtype))
    return specs


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


def _parameters(stages: Sequence[torch.nn.Module]) -> Iterator[tuple[str, Parameter]]:
    """Parameters under their global names: layers counted over all stages, wrappers' prefixes off."""
    for stage in stages:
        model = unwrap_model(stage)
        offset = get_transformer_layer_offset(model.config, model.vp_stage)
        for name, parameter in model.named_parameters():
            match = _LAYER.match(name)
            own = name if match is None else f"{match[1]}{int(match[2]) + offset}{name[match.end() :]}"
            yield global_name(own, model.config.num_moe_experts or 0), parameter


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
    shards = [torch.empty_like(data) for _ in range(size)]
    dist.all_gather(shards, data.contiguous(), group=group)
    dim = _partition_dim(parameter)
    by_part = zip(*(shard.chunk(mapping.stacked, dim) for shard in shards), strict=True)
    return torch.cat([piece for part in by_part for piece in part], dim)


def _partition_dim(parameter: Parameter) -> int:
    """The dimension that Megatron-core splits over tensor ranks; it notes it on the parameter."""
    dim: int = parameter.partition_dim  # type: ignore[attr-defined]
    return dim


def _names_by_stage(names: list[str], stages: int) -> list[list[str]]:
    if stages == 1:
        return [names]
    gathered: list[list[str]] = [[] for _ in range(stages)]
    dist.all_gather_object(gathered, names, group=parallel_state.get_pipeline_model_parallel_group())
    return gathered


def _broadcast(full: Tensor | None, source_rank: int) -> Tensor:
    group = parallel_state.get_pipeline_model_parallel_group()
    shape_and_dtype = [None if full is None else (full.shape, full.dtype)]
    dist.broadcast_object_list(shape_and_dtype, source_rank, group=group)
    shape, dtype = shape_and_dtype[0]  # type: ignore[misc]
    if full is None:
        full = torch.empty(shape, dtype=dtype, device=current().device)
    full = full.contiguous()
    dist.broadcast(full, source_rank, group=group)
    return full
