"""What `megarl sync-check` does: weights go to the engine each way that runs here, and are proven to be there."""

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from megarl.config.schema import Recipe
from megarl.data.tokenizer import build_tokenizer
from megarl.loop.engines import engine_of, running_servers
from megarl.megatron.hf_folder import saved_weights
from megarl.megatron.policy import FrozenModel
from megarl.megatron.weights import random_weights
from megarl.megatron.world import join_world, leave_world
from megarl.platform.platform import current
from megarl.rollout.distribute import generate_on_all_ranks
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.engine import WeightsError
from megarl.rollout.fleet import Fleet
from megarl.sync.probe import Agreement, Probe
from megarl.sync.push import LocalSync, ServedSync

_COPIES = 3
_GB = 1e9


@dataclass(frozen=True)
class Way:
    """What one way of syncing took.

    Attributes:
        name: of the transport.
        whole_s: seconds from asking the engine to pause until it had resumed.
        packing_s: seconds of them in which the main rank gathered, counted digests and wrote; None in process.
        nbytes: of the weights.
        agreement: of log-probs behind it.
    """

    name: str
    whole_s: float
    packing_s: float | None
    nbytes: int
    agreement: Agreement | None


def sync_check(recipe: Recipe) -> int:
    """Syncs by each transport that runs here, and compares digests and log-probs. Collective; prints on the main rank.

    Args:
        recipe: its layout, engine and precision are what is checked; nothing is trained, and its folder is not touched.

    Returns:
        0, or 1 where a tensor did not arrive or the engine's log-probs are not the trainer's.
    """
    layout = join_world(recipe.parallel, recipe.seed, recipe.precision.fp8.alignment)
    with tempfile.TemporaryDirectory(prefix="megarl-sync-check-") as folder:
        own = replace(recipe, output_dir=folder)
        vocab_size = len(build_tokenizer(recipe.tokenizer))
        with running_servers(recipe, "asked"), engine_of(own, vocab_size, is_main=layout.is_main) as engine:
            policy = FrozenModel(own, layout, vocab_size)
            init = recipe.model.init_from
            policy.load(
                random_weights(recipe.model, vocab_size, recipe.seed) if init is None else saved_weights(Path(init))
            )
            wrong, ways = _checked(own, policy, engine)
            if layout.is_main:
                _print(ways, _copy_s(policy), wrong)
    leave_world()
    return 0 if wrong is None else 1


def _nbytes(policy: FrozenModel) -> int:
    return sum(torch.Size(shape).numel() * dtype.itemsize for _, shape, dtype in policy.export_specs)


def transports(recipe: Recipe) -> list[str]:
    """Those that run between this machine's trainer and the recipe's engine, the recipe's own first."""
    if recipe.rollout.engine == "embedded":
        return []
    found = [recipe.sync.transport, "shared_memory", "disk", "broadcast"]
    if current().name == "cuda":
        found.append("cuda_ipc")
    if recipe.engine.urls:
        # running servers may be elsewhere, or see other folders: only what the recipe says is known to work
        found = found[:1]
    return list(dict.fromkeys(found))


def _checked(
    recipe: Recipe, policy: FrozenModel, engine: EmbeddedEngine | Fleet | None
) -> tuple[str | None, list[Way]]:
    """What is wrong, if anything, and what the ways took until then."""
    ways: list[Way] = []
    deltas = (False, True) if recipe.sync.delta else (False,)
    try:
        if isinstance(engine, EmbeddedEngine):
            return None, [_in_process(recipe, policy, engine)]
        for transport in transports(recipe):
            for delta in deltas:
                sync = replace(recipe.sync, transport=transport, delta=delta, verify="always")
                if transport != "disk":
                    sync = replace(sync, folder=None)
                ways += _served(replace(recipe, sync=sync), policy, engine)
    except WeightsError as error:
        return str(error), ways
    return None, ways


def _in_process(recipe: Recipe, policy: FrozenModel, engine: EmbeddedEngine) -> Way:
    sync, check = LocalSync(policy, engine), Probe(recipe, policy)
    dist.barrier()
    began = time.perf_counter()
    sync.push(0)
    seconds = time.perf_counter() - began
    layout = policy.layout
    answers = generate_on_all_ranks(engine, check.requests(), check.sampling, layout.rank, layout.world_size)
    return Way("in process", seconds, None, _nbytes(policy), check.check([answers], version=0))


def _served(recipe: Recipe, policy: FrozenModel, engine: Fleet | None) -> list[Way]:
    """The second of two syncs, as the first opens what the second uses; told on the main rank alone."""
    sync = ServedSync(recipe, policy, engine)
    try:
        for version in (0, 1):
            sync.push(version)
    finally:
        sync.close()
    name = f"{recipe.sync.transport}{', delta' * recipe.sync.delta}"
    if sync.last is None:
        return []
    return [Way(name, sync.last.whole_s, sync.last.packing_s, sync.last.nbytes, sync.agreement)]


def _copy_s(policy: FrozenModel) -> float:
    """Seconds that a copy of this rank's own parameters takes in its memory, a byte of the whole model's; the least."""
    own = [parameter.detach() for model in policy.models for parameter in model.parameters()]
    into = torch.empty(max(parameter.nbytes for parameter in own), dtype=torch.uint8, device=current().device)
    took = []
    for _ in range(_COPIES):
        current().synchronize()
        began = time.perf_counter()
        for parameter in own:
            into[: parameter.nbytes].view(parameter.dtype).copy_(parameter.reshape(-1))
        current().synchronize()
        took.append(time.perf_counter() - began)
    copied: int = sum(parameter.nbytes for parameter in own)
    return min(took) / copied


def _print(ways: list[Way], copy_s_a_byte: float, wrong: str | None) -> None:
    console = Console(highlight=False)
    table = Table(box=SIMPLE_HEAD)
    for index, column in enumerate(("transport", "seconds", "GB/s", "ours, seconds", "ours / plain copy")):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for way in ways:
        ours = ["", ""]
        if way.packing_s is not None:
            copies = way.packing_s / (copy_s_a_byte * way.nbytes)
            ours = [f"{way.packing_s:.3f}", f"{copies:.2f}" if copies < 100 else f"{copies:,.0f}"]
        table.add_row(way.name, f"{way.whole_s:.3f}", f"{way.nbytes / way.whole_s / _GB:.3g}", *ours)
    console.print(table)
    if ways:
        console.print(str(ways[-1].agreement), markup=False, soft_wrap=True)
    console.print("In step." if wrong is None else f"megarl: error: {wrong}", markup=False, soft_wrap=True)
