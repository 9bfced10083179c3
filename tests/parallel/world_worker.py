"""Functions with which `run_world` is tried."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def sums(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, Any]:
    """All-reduces the rank's share of `args['numbers']`."""
    total = torch.tensor(args["numbers"][rank], dtype=torch.float64)
    dist.all_reduce(total)
    (result_dir / f"{rank}.txt").write_text("here")
    return {"rank": rank, "world_size": world_size, "total": total, "backend": dist.get_backend()}


def fails_on_one(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> None:
    """Raises on the last rank while the others wait for it."""
    if rank == world_size - 1:
        raise ValueError("the last rank is broken")
    dist.barrier()


def dies_on_one(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> None:
    """Ends the last rank without a traceback."""
    if rank == world_size - 1:
        os._exit(7)
    dist.barrier()


def hangs(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> None:
    """Starts a child on every rank, notes its id, and waits for ever on rank 0."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (result_dir / f"{rank}.pid").write_text(str(child.pid))
    print("about to wait")
    if rank == 0:
        wait_for_ever()


def wait_for_ever() -> None:
    """Has a name that a stack shows."""
    time.sleep(600)
