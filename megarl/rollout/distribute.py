"""Spreads requests over the trainer's processes, or gives them to servers, and brings every completion everywhere."""

from collections.abc import Callable, Sequence

import torch.distributed as dist

from megarl.rollout.engine import Engine, EngineLost
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


def generate_at_servers(
    engine: Engine | None,
    requests: Sequence[Request],
    sampling: SamplingParams,
    world_size: int,
    push_again: Callable[[], None],
) -> list[Completion]:
    """Has the main rank's servers generate `requests`; all completions, in order, on every rank. Collective.

    Args:
        engine: the servers; None but on the main rank.
        requests: the same on every rank.
        sampling: how.
        world_size: number of processes.
        push_again: brings servers that died to the current weights; collective.

    Raises:
        Exception: whatever the engine raised, on every rank.
    """
    done: dict[int, Completion] = {}
    while True:
        outcome: list[list[Completion] | Exception | None] = [None]
        if engine is not None:
            waiting = [number for number in range(len(requests)) if number not in done]
            try:
                fresh = engine.generate([requests[number] for number in waiting], sampling)
                done |= dict(zip(waiting, fresh, strict=True))
                outcome[0] = [done[number] for number in range(len(requests))]
            except EngineLost as lost:
                done |= {waiting[number]: completion for number, completion in lost.completions.items()}
            except Exception as error:
                outcome[0] = error
        if world_size > 1:
            dist.broadcast_object_list(outcome)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        if outcome[0] is not None:
            return outcome[0]
        push_again()
