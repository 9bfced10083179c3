"""Names, groups and pieces of experts' parameters under expert and expert-tensor parallelism."""

import re
from collections.abc import Iterator

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

_EXPERT = re.compile(r"(.*\.experts\.local_experts\.)(\d+)(\..*)")


def is_expert(name: str) -> bool:
    """Whether Megatron-core's parameter is of a routed expert."""
    return _EXPERT.fullmatch(name) is not None


def keep_gradients_apart(stage: torch.nn.Module) -> None:
    """Has the experts' gradients added up over the ranks that hold the same part of the same experts.

    Up to 0.16 Megatron-core marks them for that only where the expert-parallel size is above 1. At 1 it takes them for
    weights of the other layers; where experts are split otherwise, the data-parallel ranks of those hold other parts of
    an expert, or are not all that hold the same.
    """
    for name, parameter in stage.named_parameters():
        if is_expert(name):
            parameter.allreduce = False  # type: ignore[attr-defined]


def global_name(name: str, experts: int) -> str:
    """The name with its expert counted over all expert-parallel ranks; other names as they are.

    Args:
        name: Megatron-core's, on this rank.
        experts: of a layer, over all ranks.
    """
    match = _EXPERT.fullmatch(name)
    if match is None:
        return name
    here = experts // parallel_state.get_expert_model_parallel_world_size()
    return f"{match[1]}{parallel_state.get_expert_model_parallel_rank() * here + int(match[2])}{match[3]}"


def names_of_ranks(name: str, experts: int) -> list[str]:
    """Global names of the parameters that the expert-parallel ranks hold in this one's place, by rank."""
    match = _EXPERT.fullmatch(name)
    if match is None:
        return [name]
    ranks = parallel_state.get_expert_model_parallel_world_size()
    here = experts // ranks
    return [f"{match[1]}{rank * here + int(match[2]) % here}{match[3]}" for rank in range(ranks)]


def gather_over_ranks(full: Tensor, name: str) -> Tensor:
    """What the expert-parallel ranks hold in this one's place, [ranks, ...]; other names' as [1, ...]. Collective."""
    if not is_expert(name) or parallel_state.get_expert_model_parallel_world_size() == 1:
        return full[None]
    group = parallel_state.get_expert_model_parallel_group()
    held = full.new_empty(group.size(), *full.shape)
    for rank, piece in enumerate(shards_in_turn(full, group)):
        held[rank].copy_(piece)
    return held


def shards_in_turn(own: Tensor, group: dist.ProcessGroup) -> Iterator[Tensor]:
    """Each rank's tensor, by rank, one at a time: gloo's gathering of all at once holds them twice. Collective.

    As many bytes travel as in a gathering. A tensor is gone when the next comes.
    """
    arriving = torch.empty_like(own, memory_format=torch.contiguous_format)
    for rank in range(group.size()):
        shard = own.contiguous() if rank == group.rank() else arriving
        dist.broadcast(shard, dist.get_global_rank(group, rank), group=group)
        yield shard


def tensor_group(name: str) -> dist.ProcessGroup:
    """The ranks that a parameter is split over."""
    group: dist.ProcessGroup = (
        parallel_state.get_expert_tensor_parallel_group()
        if is_expert(name)
        else parallel_state.get_tensor_model_parallel_group()
    )
    return group
