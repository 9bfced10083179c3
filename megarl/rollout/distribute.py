"""Spreads requests over the trainer's processes and brings every completion to every process."""

from collections.abc import Sequence

import torch.distributed as dist

from megarl.rollout.engine import Engine
from megarl.rollout.types import Completion, Request, SamplingParams


def generate_on_all_ranks(
    engine: Engine, requests: Sequence[Request], sampling: SamplingParams, rank: int, world_size: int
) -> list[Completion]:
    """Generates `requests`, each on one rank, and returns all completions in order on every rank. Collective.

    Args:
        engine: this process's engine.
        requests: the same on every rank; rank r generates every world_size-th, from the r-th.
        sampling: how.
        rank: this process's.
        world_size: number of processes.
    """
    own = engine.generate(requests[rank::world_size], sampling) if rank < len(requests) else []
    if world_size == 1:
        return own
    gathered: list[list[Completion]] = [[] for _ in range(world_size)]
    dist.all_gather_object(gathered, own)
    return [gathered[row % world_size][row // world_size] for row in range(len(requests))]
