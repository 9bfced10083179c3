"""What one rank sees of each family's weights, log-probs and updates, and of the memory that moving weights takes."""

import ctypes
import gc
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from megarl.checkpoint.hf import export_hf
from megarl.checkpoint.state import RunState
from megarl.checkpoint.store import CheckpointStore
from megarl.checkpoint.tensors import save_tensors
from megarl.config.model import ModelConfig, ParallelConfig, TokenizerConfig
from megarl.config.schema import Recipe
from megarl.config.training import OptimizerConfig
from megarl.data.tokenizer import build_tokenizer
from megarl.loop.folder import CHECKPOINTS, RUN_FILE
from megarl.megatron.hf_folder import saved_weights
from megarl.megatron.policy import FrozenModel, Policy
from megarl.megatron.world import join_world
from megarl.objectives import GRPO, KLPenalty
from megarl.observe.files import write_json_atomic
from tests.unit.megatron.tiny import ALPHABET, VOCAB, random_batch, rl_batch, tiny_recipe

# isort: split
# after megarl.megatron, which prepares torch for it
from megatron.core import parallel_state

ROWS = 4
M_MMAP_THRESHOLD = -3  # malloc.h
OPTIMIZER = OptimizerConfig(lr=1e-2, weight_decay=0.1, clip_grad=0.5, eps=1e-3)
TOKENIZER = TokenizerConfig(alphabet=ALPHABET, words=[])


def everything(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, Any]:
    """Memory first, then the round trips: a process takes seconds to start."""
    found = memory(rank, world_size, args["memory"], result_dir)
    return {"memory": found, "trips": round_trips(rank, world_size, args["trips"], result_dir)}


def round_trips(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, dict[str, Any]]:
    """Layout to model to results. Each model is read from `args['source']`, written, and then updated once."""
    results: dict[str, dict[str, Any]] = {}
    for layout_name, sizes in args["layouts"].items():
        layout = join_world(tiny_recipe(world_size=world_size, **sizes).parallel, seed=1)
        results[layout_name] = {}
        for name, model in args["models"].items():
            policy = Policy(tiny_recipe(world_size=world_size, **sizes, **model), layout, VOCAB)
            policy.load(saved_weights(Path(args["source"]) / name))
            target = result_dir / f"{layout_name}-{name}"
            export_hf(policy, target, build_tokenizer(TOKENIZER), args["shard_bytes"])
            log_probs = policy.log_probs(random_batch(ROWS), 1)
            policy.start_phase(OPTIMIZER, 4)
            update = policy.update(rl_batch(ROWS, log_probs), KLPenalty(GRPO(), 0.04), micro_batch_size=1)
            results[layout_name][name] = {
                "log_probs": log_probs,
                "grad_norm": update.grad_norm,
                "updated": {hf_name: tensor.clone() for hf_name, tensor in policy.export()},
            }
            if name == args["checkpointed"]:
                _checkpoint(policy, result_dir / f"run-{layout_name}")
        parallel_state.destroy_model_parallel()
    return results


def _checkpoint(policy: Policy, run: Path) -> None:
    """A run's folder as far as `megarl convert` reads it."""
    store = CheckpointStore(run / CHECKPOINTS, keep=1)
    if policy.layout.is_main:
        store.begin()
        write_json_atomic(run / RUN_FILE, {"recipe": asdict(replace(policy.recipe, tokenizer=TOKENIZER))})
    torch.distributed.barrier()
    save_tensors(policy, store.staging, with_optimizer=True)
    if policy.layout.is_main:
        store.commit(RunState(phase="rl", step=1), {})


def memory(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, dict[str, int]]:
    """Layout to the bytes that reading and writing a model takes at most, beyond the model itself."""
    # the C library gives freed memory back at once, so that what is resident is what is held
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 65536) == 1
    results = {}
    for name, sizes in args["layouts"].items():
        parallel = ParallelConfig(world_size=world_size, timeout_s=60, **sizes)
        layout = join_world(parallel, seed=1)
        policy = FrozenModel(Recipe(model=ModelConfig(**args["model"]), parallel=parallel), layout, VOCAB)
        tokenizer = build_tokenizer(TOKENIZER)
        # pages that were never written to are not yet resident
        for parameter in policy.models[0].parameters():
            parameter.data.fill_(1.0)
        read = peak(lambda policy=policy: policy.load(saved_weights(Path(args["source"]))))
        write = peak(
            lambda policy=policy, tokenizer=tokenizer, name=name: export_hf(
                policy, result_dir / name, tokenizer, args["shard_bytes"]
            )
        )
        results[name] = {"read": read, "write": write, "model": sum(p.nbytes for p in policy.models[0].parameters())}
        parallel_state.destroy_model_parallel()
    return results


def peak(action: Callable[[], None]) -> int:
    """By how many bytes this process's resident memory rose above where it was, at most."""
    gc.collect()
    # 5 resets the high-water mark (proc(5))
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    action()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
