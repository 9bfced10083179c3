"""Joins the trainer's processes and lays Megatron-core's parallel groups over them."""

import math
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from torch.distributed import HashStore, Store, TCPStore  # type: ignore[attr-defined]

from megarl.config.model import ParallelConfig
from megarl.platform.joined import RENDEZVOUS, RENDEZVOUS_HOST, Joined, joined_world
from megarl.platform.platform import current


@dataclass(frozen=True)
class Layout:
    """Where this process stands.

    Attributes:
        rank: rank in the whole trainer.
        world_size: trainer processes.
        data_rank: which share of a batch this process trains on.
        data_size: number of such shares.
        is_last_stage: whether this pipeline rank holds the output layer, so the loss is formed here.
        speaks: whether this process speaks for its share: the last stage's first tensor and context rank. Summing what
            the speakers hold counts every token once.
        context_size: ranks that share each sequence.
        pipeline_size: ranks that the layers are shared over.
        virtual_size: stages that each of them holds.
        expert_size: ranks that a layer's experts are spread over.
        token_multiple: what the tokens of a sequence, over all context ranks, must divide by.
    """

    rank: int
    world_size: int
    data_rank: int
    data_size: int
    is_last_stage: bool
    speaks: bool
    context_size: int = 1
    pipeline_size: int = 1
    virtual_size: int = 1
    expert_size: int = 1
    token_multiple: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run's files."""
        return self.rank == 0


def join_world(config: ParallelConfig, seed: int, token_alignment: int = 1) -> Layout:
    """Joins (or, alone, makes) the process group and initialises Megatron-core's parallel state.

    The environment decides: a launcher's rendezvous folder, else torchrun's or srun's MASTER_ADDR and MASTER_PORT,
    else a world of one.

    Args:
        config: sizes of the parallel groups.
        seed: seed of Megatron-core's RNG tracker (dropout).
        token_alignment: see `ParallelConfig.token_multiple`.
    """
    platform = current()
    platform.use_device()
    torch.set_num_threads(config.threads)
    if not dist.is_initialized():
        joined = joined_world() or Joined(rank=0, world_size=1)
        rank, world_size = joined.rank, joined.world_size
        timeout = timedelta(seconds=config.timeout_s)
        # without a store, torch reads MASTER_ADDR and MASTER_PORT
        store = _own_store(rank, world_size, timeout)
        dist.init_process_group(
            platform.dist_backend,
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timeout,
            # NCCL's barrier would otherwise guess the device from the rank
            device_id=platform.device if platform.name == "cuda" else None,
        )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=config.tensor,
        pipeline_model_parallel_size=config.pipeline,
        virtual_pipeline_model_parallel_size=config.virtual if config.virtual > 1 else None,
        context_parallel_size=config.context,
        expert_model_parallel_size=config.expert,
        expert_tensor_parallel_size=config.expert_tensor_size,
        # else Megatron-core's groups wait 30 minutes, whatever the world's own limit
        distributed_timeout_minutes=math.ceil(config.timeout_s / 60),
    )
    tensor_parallel.model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
    is_last_stage = parallel_state.is_pipeline_last_stage()
    return Layout(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        data_rank=parallel_state.get_data_parallel_rank(),
        data_size=parallel_state.get_data_parallel_world_size(),
        is_last_stage=is_last_stage,
        speaks=is_last_stage
        and parallel_state.get_tensor_model_parallel_rank() == 0
        and parallel_state.get_context_parallel_rank() == 0,
        context_size=config.context,
        pipeline_size=config.pipeline,
        virtual_size=config.virtual,
        expert_size=config.expert,
        token_multiple=config.token_multiple(token_alignment),
    )


def leave_world() -> None:
    """Tears the parallel state and the process group down."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def _own_store(rank: int, world_size: int, timeout: timedelta) -> Store | None:
    """The store of a world that meets in a folder, or of a world of one; None in another launcher's."""
    if folder := os.environ.get(RENDEZVOUS):
        host = os.environ.get(RENDEZVOUS_HOST, "127.0.0.1")
        return _met_store(Path(folder), host, rank, world_size, timeout)
    return HashStore() if world_size == 1 else None


def _met_store(folder: Path, host: str, rank: int, world_size: int, timeout: timedelta) -> Store:
    """A store on a port that rank 0's kernel picks, so that two runs on one machine never clash."""
    port_file = folder / "port"
    if rank == 0:
        store = TCPStore(host, 0, world_size, is_master=True, timeout=timeout, wait_for_workers=False)
        beside = folder / "port.writing"
        beside.write_text(str(store.port))
        beside.rename(port_file)
        return store
    deadline = time.monotonic() + timeout.total_seconds()
    # a listing, as a network file system may remember for a while that one file is not there
    while port_file.name not in os.listdir(folder):
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 did not write {port_file} within {timeout.total_seconds():.0f} s")
        time.sleep(0.02)
    return TCPStore(host, int(port_file.read_text()), world_size, is_master=False, timeout=timeout)
