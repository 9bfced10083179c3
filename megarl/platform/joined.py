"""Whether another launcher started this process, read from its environment. Imports nothing heavy."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from megarl.config.errors import UserError

RENDEZVOUS = "MEGARL_RENDEZVOUS"
"""Folder in which rank 0 tells the others its port: of megarl's own launcher, or of a job's script."""
RENDEZVOUS_HOST = "MEGARL_RENDEZVOUS_HOST"
"""Rank 0's machine, where the ranks are on several."""
LAUNCHER_PID = "MEGARL_LAUNCHER_PID"
"""Process id of megarl's own launcher."""


@dataclass(frozen=True)
class Joined:
    """This process's place in a world that was started for it.

    Attributes:
        rank: its rank.
        world_size: number of processes.
    """

    rank: int
    world_size: int


def joined_world(environment: Mapping[str, str] = os.environ) -> Joined | None:
    """The world of megarl's own launcher or torchrun (RANK, WORLD_SIZE), or of srun's step; None where there is none.

    A batch script has SLURM_PROCID too, but is no task of a step: SLURM_STEP_NUM_TASKS tells them apart.

    Raises:
        UserError: a world is announced and what it takes to join it is missing.
    """
    if "RANK" in environment or "WORLD_SIZE" in environment:
        for name in ("RANK", "WORLD_SIZE"):
            _need(name, "RANK and WORLD_SIZE come together", environment)
        joined = Joined(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
    elif int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        joined = Joined(int(environment["SLURM_PROCID"]), int(environment["SLURM_STEP_NUM_TASKS"]))
        if RENDEZVOUS in environment:
            # loopback, which megarl's own launcher means without it, would leave the other nodes to wait
            _need(RENDEZVOUS_HOST, f"{RENDEZVOUS} is there", environment)
    else:
        return None
    if RENDEZVOUS not in environment and joined.world_size > 1:
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            _need(name, f"this process is one of {joined.world_size}", environment)
    return joined


def _need(name: str, reason: str, environment: Mapping[str, str]) -> None:
    if name not in environment:
        raise UserError(
            f"The environment variable {name} is missing, but {reason}; export it, or start without a launcher."
        )
