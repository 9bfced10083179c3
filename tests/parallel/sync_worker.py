"""What one rank sees of syncs under a layout, for test_sync."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megarl.config.engine import SyncConfig
from megarl.config.model import ModelConfig, ParallelConfig
from megarl.config.schema import Recipe
from megarl.megatron.policy import FrozenModel
from megarl.megatron.world import join_world
from tests.parallel.families_worker import peak
from tests.parallel.sync_reader import ReadersWithoutEngine
from tests.parallel.sync_without_probe import SyncWithoutProbe
from tests.unit.megatron.tiny import VOCAB, noisy_weights, tiny_recipe

# isort: split
# after megarl.megatron, which prepares torch for it
from megatron.core import parallel_state

TRANSPORTS = ("shared_memory", "disk", "broadcast")


def everything(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, Any]:
    """Syncs of each model by each transport; and the memory of one of a larger model."""
    found: dict[str, Any] = {}
    for name, (sizes, model) in args["cases"].items():
        recipe = tiny_recipe(world_size=world_size, **sizes, **model)
        layout = join_world(recipe.parallel, seed=1)
        policy = FrozenModel(recipe, layout, VOCAB)
        engine = ReadersWithoutEngine() if layout.is_main else None
        found[name] = {
            f"{transport}{', delta' * delta}": _synced(policy, engine, transport, delta, result_dir / name)
            for transport in TRANSPORTS
            for delta in (False, True)
        }
        if engine is not None:
            engine.close()
        parallel_state.destroy_model_parallel()
    if "memory" in args:
        found["memory"] = _memory(world_size, args["memory"])
    return found


def _synced(
    policy: FrozenModel, engine: ReadersWithoutEngine | None, transport: str, delta: bool, folder: Path
) -> dict[str, Any]:
    """Digests that the reader counted after each of three syncs: the first, one with few changes, one with none."""
    keys = {"folder": str(folder)} if transport == "disk" else {}
    recipe = replace(
        policy.recipe,
        sync=SyncConfig(transport=transport, delta=delta, verify="always", **keys),
        output_dir=str(folder),
    )
    if engine is not None:
        engine.fresh, engine.moved = True, []
    sync = SyncWithoutProbe(recipe, policy, engine)
    read, digests = noisy_weights(policy.recipe.model), []

    def changed(name: str) -> Tensor:
        tensor = read(name).clone()
        tensor.flatten()[::9] = -0.0
        return tensor

    for version, weights in enumerate((read, changed, changed)):
        policy.load(weights)
        sync.push(version)
        digests.append(engine.received_digests()[0] if engine is not None else {})
    sync.close()
    return {"digests": digests, "moved": [] if engine is None else engine.moved}


def _memory(world_size: int, args: dict[str, Any]) -> dict[str, int]:
    """By how much the main rank's memory rises in the first sync of a policy; code and threads are warm."""
    parallel = ParallelConfig(world_size=world_size, timeout_s=60, **args["sizes"])
    layout = join_world(parallel, seed=1)
    recipe = Recipe(
        model=ModelConfig(**args["model"]), parallel=parallel, sync=SyncConfig(bucket_mib=args["bucket_mib"])
    )
    policy = FrozenModel(recipe, layout, args["vocab"])
    for parameter in policy.models[0].parameters():
        # pages that were never written to are not yet resident
        parameter.data.fill_(1.0)
    engine = ReadersWithoutEngine() if layout.is_main else None
    found = 0
    for _ in range(2):
        sync = SyncWithoutProbe(recipe, policy, engine)
        found = peak(lambda sync=sync: sync.push(0))
        bucket = max(bucket.nbytes for bucket in sync.buckets)
        sync.close()
    if engine is not None:
        engine.close()
    parallel_state.destroy_model_parallel()
    weights = sum(torch.Size(shape).numel() * dtype.itemsize for _, shape, dtype in policy.export_plan.specs)
    return {
        "peak": found,
        "bucket": bucket,
        "gathered": policy.export_plan.largest,
        "weights": weights,
    }
