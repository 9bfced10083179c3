"""Model, optimizer and schedule through Megatron-core's dist_checkpointing; each rank's RNG beside them."""

# Before megatron.core: where there is no GPU, this makes it importable.
import megarl.megatron  # noqa: F401

# isort: split
import inspect
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, tensor_parallel
from safetensors.torch import load_file, save_file

from megarl.megatron.policy import Policy
from megarl.platform.checkpoint_writer import fast_sync_save

_METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}


def save_tensors(policy: Policy, folder: Path, *, with_optimizer: bool) -> None:
    """Writes this rank's share into `folder`, which every rank sees. Collective.

    Args:
        policy: the model, its optimizer and its schedule.
        folder: a folder that exists and is empty.
        with_optimizer: False where the optimizer never stepped, and so has no moments to write: making them exist would
            change the optimizer that goes on.
    """
    # 0.19 takes NVIDIA's resiliency extension by default, which is no dependency of ours
    options = {"async_strategy": "mcore"} if _takes(dist_checkpointing.save, "async_strategy") else {}
    tensors = folder / "tensors"
    if policy.layout.is_main:
        tensors.mkdir()
    torch.distributed.barrier()
    with fast_sync_save():
        dist_checkpointing.save(_sharded_state(policy, with_optimizer, is_loading=False), str(tensors), **options)
    save_file(_rng_state(), folder / f"rng-{policy.layout.rank:05d}.safetensors")
    torch.distributed.barrier()


def load_tensors(policy: Policy, folder: Path, *, with_optimizer: bool) -> None:
    """Restores what `save_tensors` wrote. The policy must be in the phase that was saved. Collective.

    Args:
        policy: takes the state; without the optimizer's, its own must be fresh.
        folder: what was saved.
        with_optimizer: as it was saved.

    Raises:
        FileNotFoundError: this rank's RNG is not there: the checkpoint was saved by a smaller world.
    """
    # the optimizer casts its state to each parameter's dtype, which torch refuses to track
    with torch.no_grad():
        loaded = dist_checkpointing.load(
            _sharded_state(policy, with_optimizer, is_loading=True), str(folder / "tensors")
        )
        policy.model.load_state_dict(loaded["model"])
        if with_optimizer:
            policy.optimizer.load_state_dict(loaded["optimizer"])
    # Megatron-core adds the saved steps to those that were made
    policy.scheduler.num_steps = 0
    policy.scheduler.load_state_dict(loaded["scheduler"])
    _restore_rng(load_file(folder / f"rng-{policy.layout.rank:05d}.safetensors"))


def _sharded_state(policy: Policy, with_optimizer: bool, *, is_loading: bool) -> dict[str, Any]:
    model = policy.model.sharded_state_dict(metadata=dict(_METADATA))
    state = {"model": model, "scheduler": policy.scheduler.state_dict()}
    if with_optimizer:
        optimizer = policy.optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=dict(_METADATA))
        state["optimizer"] = optimizer
    return state


def _rng_state() -> dict[str, torch.Tensor]:
    trackers = tensor_parallel.get_cuda_rng_tracker().get_states()
    device = {f"tracker/{name}": state.cpu().clone() for name, state in trackers.items()}
    return {"cpu": torch.get_rng_state(), "device": torch.cuda.get_rng_state().cpu().clone(), **device}


def _restore_rng(saved: dict[str, torch.Tensor]) -> None:
    trackers = {name.removeprefix("tracker/"): state for name, state in saved.items() if name.startswith("tracker/")}
    tensor_parallel.get_cuda_rng_tracker().set_states(trackers)
    torch.cuda.set_rng_state(saved["device"])
    torch.set_rng_state(saved["cpu"])


def _takes(function: Any, parameter: str) -> bool:
    return parameter in inspect.signature(function).parameters
