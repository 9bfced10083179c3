"""Model, optimizer and schedule through Megatron-core's dist_checkpointing; each rank's RNG beside them."""

# Before megatron.core: where there is no GPU, this makes it importable.
import megarl.megatron  # noqa: F401

# isort: split
import inspect
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, tensor_parallel
from megatron.core.models.gpt import GPTModel
from safetensors.torch import load_file, save_file

from megarl.megatron.schedule import Trainee
from megarl.platform.checkpoint_writer import fast_sync_save

_METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}


def save_tensors(
    trainee: Trainee, folder: Path, *, with_optimizer: bool, name: str = "policy", with_rng: bool = True
) -> None:
    """Writes this rank's share into `folder`, which every rank sees. Collective.

    Args:
        trainee: the model, its optimizer and its schedule.
        folder: a folder that exists.
        with_optimizer: False where the optimizer never stepped, and so has no moments to write: making them exist would
            change the optimizer that goes on.
        name: of the trainee, which gets a folder of its own.
        with_rng: whether this rank's random state is saved too: once a checkpoint.
    """
    # 0.19 takes NVIDIA's resiliency extension by default, which is no dependency of ours
    options = {"async_strategy": "mcore"} if _takes(dist_checkpointing.save, "async_strategy") else {}
    tensors = folder / name
    if trainee.layout.is_main:
        tensors.mkdir()
    torch.distributed.barrier()
    with fast_sync_save():
        dist_checkpointing.save(_sharded_state(trainee, with_optimizer, is_loading=False), str(tensors), **options)
    if with_rng:
        save_file(_rng_state(), folder / _rng_name(trainee))
    torch.distributed.barrier()


def load_tensors(
    trainee: Trainee, folder: Path, *, with_optimizer: bool, name: str = "policy", with_rng: bool = True
) -> None:
    """Restores what `save_tensors` wrote. The trainee must be in the phase that was saved. Collective.

    Args:
        trainee: takes the state; without the optimizer's, its own must be fresh.
        folder: what was saved.
        with_optimizer: as it was saved.
        name: of the trainee.
        with_rng: whether this rank's random state is restored too.

    Raises:
        FileNotFoundError: this rank's RNG is not there: the checkpoint was saved by a smaller world.
    """
    # the optimizer casts its state to each parameter's dtype, which torch refuses to track
    with torch.no_grad():
        loaded = dist_checkpointing.load(_sharded_state(trainee, with_optimizer, is_loading=True), str(folder / name))
        for index, model in enumerate(trainee.models):
            model.load_state_dict(loaded[f"model{index}"])
        if with_optimizer:
            trainee.optimizer.load_state_dict(loaded["optimizer"])
    trainee.has_stepped = with_optimizer
    # Megatron-core adds the saved steps to those that were made
    trainee.scheduler.num_steps = 0
    trainee.scheduler.load_state_dict(loaded["scheduler"])
    if with_rng:
        _restore_rng(load_file(folder / _rng_name(trainee)))


def load_model(model: GPTModel, folder: Path, name: str = "policy") -> None:
    """Fills a model alone, under any layout, from what `save_tensors` wrote. Collective.

    Args:
        model: takes the weights.
        folder: what was saved.
        name: of the trainee.
    """
    with torch.no_grad():
        state = {"model": model.sharded_state_dict(metadata=dict(_METADATA))}
        model.load_state_dict(dist_checkpointing.load(state, str(folder / name))["model"])


def _rng_name(trainee: Trainee) -> str:
    return f"rng-{trainee.layout.rank:05d}.safetensors"


def _sharded_state(trainee: Trainee, with_optimizer: bool, *, is_loading: bool) -> dict[str, Any]:
    models = {
        f"model{index}": model.sharded_state_dict(metadata=dict(_METADATA))
        for index, model in enumerate(trainee.models)
    }
    state = {**models, "scheduler": trainee.scheduler.state_dict()}
    if with_optimizer:
        optimizer = trainee.optimizer.sharded_state_dict(models, is_loading=is_loading, metadata=dict(_METADATA))
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
