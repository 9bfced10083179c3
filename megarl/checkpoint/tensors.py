"""Model, optimizer and schedule through Megatron-core's dist_checkpointing; each rank's own state beside them."""

# Before megatron.core: where there is no GPU, this makes it importable.
import megarl.megatron  # noqa: F401

# isort: split
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, tensor_parallel
from megatron.core.models.gpt import GPTModel
from safetensors.torch import load_file

from megarl.checkpoint.names import rank_file
from megarl.checkpoint.shards import write_tensors
from megarl.megatron.schedule import Trainee
from megarl.megatron.world import Layout
from megarl.platform.checkpoint_writer import plan_write
from megarl.platform.fp8.linear import delayed_scales
from megarl.platform.pending_write import HostMemory, PendingWrite

_METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}


@dataclass(frozen=True)
class PendingTensors:
    """This rank's part of a trainee's state, planned and not written.

    Attributes:
        files: what this rank writes.
    """

    files: list[Path]
    _sharded: PendingWrite
    _own: dict[Path, dict[str, torch.Tensor]]

    def copy(self) -> None:
        """See `PendingWrite.copy`: once this returns, the trainee's weights and moments may change."""
        self._sharded.copy()

    def write(self) -> None:
        """Copies, writes and syncs the files. Not collective, and safe in a thread.

        Raises:
            OSError: a file could not be written.
        """
        self._sharded.write()
        for path, tensors in self._own.items():
            write_tensors(tensors, path)

    def finish(self) -> None:
        """See `PendingWrite.finish`. Collective, once all ranks have written."""
        self._sharded.finish()

    def write_index(self) -> None:
        """See `PendingWrite.write_index`: makes the files a state that can be loaded."""
        self._sharded.write_index()


def plan_tensors(
    trainee: Trainee,
    folder: Path,
    *,
    with_optimizer: bool,
    name: str = "policy",
    with_rng: bool = True,
    memory: HostMemory | None = None,
) -> PendingTensors:
    """Plans the writing of this rank's share into `folder`, which every rank sees. Collective.

    Args:
        trainee: the model, its optimizer and its schedule.
        folder: a folder that exists.
        with_optimizer: False where the optimizer never stepped, and so has no moments to write: making them exist would
            change the optimizer that goes on.
        name: of the trainee, which gets a folder of its own.
        with_rng: whether this rank's random state is saved too: once a checkpoint.
        memory: for a copy of its share on the host, so that the trainee may go on before it is written. Its weights and
            moments must stay as they are until `PendingTensors.copy` has returned; its generators and buffers are
            copied here.

    Raises:
        OSError: the part that is no tensor could not be written.
    """
    tensors = folder / name
    if trainee.layout.is_main:
        tensors.mkdir()
    torch.distributed.barrier()
    # a forward pass may change them
    buffers = [buffer for model in trainee.models for buffer in model.buffers()]
    sharded = plan_write(_sharded_state(trainee, with_optimizer, is_loading=False), tensors, memory, buffers)
    own = {folder / rank_file("rng", trainee.layout.rank): _rng_state()} if with_rng else {}
    if scales := _scale_tensors(trainee):
        copies = {key: tensor.cpu().clone() for key, tensor in scales.items()}
        own[folder / rank_file(f"fp8-{name}", trainee.layout.rank)] = copies
    return PendingTensors([*sharded.files, *own], sharded, own)


def save_tensors(
    trainee: Trainee, folder: Path, *, with_optimizer: bool, name: str = "policy", with_rng: bool = True
) -> None:
    """Writes what `plan_tensors` plans, at once. Collective."""
    pending = plan_tensors(trainee, folder, with_optimizer=with_optimizer, name=name, with_rng=with_rng)
    pending.write()
    torch.distributed.barrier()
    pending.finish()
    pending.write_index()
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
        else:
            trainee.take_over_weights()
            for scaler, saved in zip(_loss_scalers(trainee), loaded.get("loss_scalers", []), strict=True):
                scaler.load_state_dict(saved)
    trainee.has_stepped = with_optimizer
    # Megatron-core adds the saved steps to those that were made
    trainee.scheduler.num_steps = 0
    trainee.scheduler.load_state_dict(loaded["scheduler"])
    if with_rng:
        _restore_rng(load_file(folder / rank_file("rng", trainee.layout.rank)))
    if scales := _scale_tensors(trainee):
        saved_scales = load_file(folder / rank_file(f"fp8-{name}", trainee.layout.rank))
        for key, tensor in scales.items():
            tensor.copy_(saved_scales[key])


def load_model(models: Sequence[GPTModel], folder: Path, name: str = "policy") -> None:
    """Fills a model alone, under any layout, from what `save_tensors` wrote. Collective.

    Args:
        models: this rank's stages of it.
        folder: what was saved.
        name: of the trainee.
    """
    with torch.no_grad():
        loaded = dist_checkpointing.load(_sharded_models(models), str(folder / name))
        for index, model in enumerate(models):
            model.load_state_dict(loaded[f"model{index}"])


def seed_generators(name: str, layout: Layout) -> None:
    """Gives this rank the generators that its place in the layout and `name` decide, where it has none to go on with.

    Args:
        name: of the point in the run, with its seed.
        layout: where this rank stands.
    """

    def keyed(key: str) -> int:
        # Megatron-core adds its ranks to the seed
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little") >> 1

    torch.manual_seed(keyed(f"{name}/{layout.rank}"))
    # after torch's own, which seeds the device too
    tensor_parallel.model_parallel_cuda_manual_seed(keyed(name), force_reset_rng=True)


def _scale_tensors(trainee: Trainee) -> dict[str, torch.Tensor]:
    """The histories of emulated delayed scaling, of this rank's own layers; Transformer Engine's are the model's."""
    scales = delayed_scales(trainee.models)
    return {f"{path}/{name}": tensor for path, scale in scales for name, tensor in scale.named_buffers()}


def _sharded_models(models: Sequence[GPTModel]) -> dict[str, Any]:
    return {f"model{index}": model.sharded_state_dict(metadata=dict(_METADATA)) for index, model in enumerate(models)}


def _sharded_state(trainee: Trainee, with_optimizer: bool, *, is_loading: bool) -> dict[str, Any]:
    models = _sharded_models(trainee.models)
    state = {**models, "scheduler": trainee.scheduler.state_dict()}
    if with_optimizer:
        optimizer = trainee.optimizer.sharded_state_dict(models, is_loading=is_loading, metadata=dict(_METADATA))
        state["optimizer"] = optimizer
    elif scalers := _loss_scalers(trainee):
        # the first steps may have been skipped, each towards a lower scale
        state["loss_scalers"] = [scaler.state_dict() for scaler in scalers]
    return state


def _loss_scalers(trainee: Trainee) -> list[Any]:
    """Megatron-core's dynamic loss scales, which only fp16 has."""
    optimizers = getattr(trainee.optimizer, "chained_optimizers", [trainee.optimizer])
    scalers = [getattr(optimizer, "grad_scaler", None) for optimizer in optimizers]
    return [scaler for scaler in scalers if scaler is not None]


def _rng_state() -> dict[str, torch.Tensor]:
    trackers = tensor_parallel.get_cuda_rng_tracker().get_states()
    device = {f"tracker/{name}": state.cpu().clone() for name, state in trackers.items()}
    return {"cpu": torch.get_rng_state(), "device": torch.cuda.get_rng_state().cpu().clone(), **device}


def _restore_rng(saved: dict[str, torch.Tensor]) -> None:
    trackers = {name.removeprefix("tracker/"): state for name, state in saved.items() if name.startswith("tracker/")}
    tensor_parallel.get_cuda_rng_tracker().set_states(trackers)
    torch.cuda.set_rng_state(saved["device"])
    torch.set_rng_state(saved["cpu"])
