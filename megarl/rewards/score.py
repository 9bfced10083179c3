"""Scores a batch, each response on one process, and brings every reward to every process."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from megarl.data.problem import Problem


def score_on_all_ranks(
    score: Callable[[str, Problem], float],
    responses: Sequence[str],
    problems: Sequence[Problem],
    rank: int,
    world_size: int,
) -> Tensor:
    """Rewards of the responses, fp32 [B], on every rank. Collective.

    Args:
        score: the checked reward.
        responses: text of each response, the same on every rank.
        problems: the problem of each response.
        rank: this process's.
        world_size: number of processes.
    """
    own = [score(responses[row], problems[row]) for row in range(rank, len(responses), world_size)]
    if world_size == 1:
        return torch.tensor(own, dtype=torch.float32)
    gathered: list[list[float]] = [[] for _ in range(world_size)]
    dist.all_gather_object(gathered, own)
    return torch.tensor([gathered[row % world_size][row // world_size] for row in range(len(responses))])
