"""Times weight sync of a 500 MB model into a live vLLM on this machine, by each transport that runs here.

    python benchmarks/sync.py            # from the repository's root, in an environment with vLLM; some minutes

Two ratios, each formed within one run. Ours over a plain copy: gather, digests, packing, transfer and the worker's
digests into real readers that load nothing, over one copy of the same bytes in memory. Stock over whole: the engine's
own reload from a folder in the page cache over megarl's update, from the request to pause until the engine has resumed.
Each time is the least of some repeats. Writes benchmarks/sync.json and prints the table of docs/engines.md.
"""

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from megarl.checkpoint.shards import ShardWriter  # noqa: E402
from megarl.config.engine import EngineConfig, SyncConfig  # noqa: E402
from megarl.config.model import ModelConfig, ParallelConfig  # noqa: E402
from megarl.config.precision import PrecisionConfig  # noqa: E402
from megarl.config.rollout import RolloutConfig  # noqa: E402
from megarl.config.schema import Recipe  # noqa: E402
from megarl.megatron.policy import FrozenModel  # noqa: E402
from megarl.megatron.weights import random_weights  # noqa: E402
from megarl.megatron.world import join_world, leave_world  # noqa: E402
from megarl.rollout.build import build_fleet  # noqa: E402
from megarl.rollout.fleet import Fleet  # noqa: E402
from megarl.sync.push import ServedSync  # noqa: E402
from tests.parallel.sync_reader import ReadersWithoutEngine  # noqa: E402
from tests.parallel.sync_without_probe import SyncWithoutProbe  # noqa: E402

RESULTS = REPOSITORY / "benchmarks/sync.json"
REPEATS = 7
VOCAB = 16384
MODEL = ModelConfig(
    family="qwen2",
    num_layers=16,
    hidden_size=768,
    ffn_hidden_size=2048,
    num_attention_heads=12,
    num_query_groups=12,
    head_dim=64,
    max_position_embeddings=512,
    tie_embeddings=True,
)
"""About 125 million parameters: 500 MB in fp32."""
TRANSPORTS = ("shared_memory", "disk", "broadcast")


def recipe_of(folder: Path, dtype: str = "fp32", **sync: Any) -> Recipe:
    """The benchmark's recipe, with these keys of the section sync."""
    return Recipe(
        model=MODEL,
        parallel=ParallelConfig(timeout_s=600),
        precision=PrecisionConfig(dtype=dtype),
        rollout=RolloutConfig(engine="vllm", temperature=1.0),
        engine=EngineConfig(kv_cache_gib=0.5),
        sync=SyncConfig(bucket_mib=128, **sync),
        output_dir=str(folder),
    )


def least(action: Callable[[], float | None], repeats: int = REPEATS) -> float:
    """Seconds: what the action returns, or took."""
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        returned = action()
        took.append(time.perf_counter() - began if returned is None else returned)
    return min(took)


def plain_copy_s(policy: FrozenModel) -> float:
    """One copy of the weights, a parameter at a time, into memory that is there already."""
    weights = [parameter.detach() for model in policy.models for parameter in model.parameters()]
    into = [torch.empty_like(weight) for weight in weights]

    def copy() -> None:
        for source, target in zip(weights, into, strict=True):
            target.copy_(source)

    copy()
    return least(copy)


def ours_s(policy: FrozenModel, folder: Path, readers: ReadersWithoutEngine, **sync: Any) -> float:
    """From begin to finish into readers that load nothing."""
    readers.fresh = True
    own = SyncWithoutProbe(recipe_of(folder, policy.recipe.precision.dtype, **sync), policy, readers)
    own.push(0)
    versions = iter(range(1, 100))

    def push() -> float:
        own.push(next(versions))
        assert own.last is not None
        return own.last.whole_s

    found = least(push)
    own.close()
    return found


def into_engine(
    policy: FrozenModel, fleet: Fleet, folder: Path, stock: Callable[[], None], **sync: Any
) -> dict[str, float]:
    """From pause to resume at the live engine, and where the least time went; the stock reload's turns lie between."""
    own = ServedSync(recipe_of(folder, **sync), policy, fleet)
    own.push(0)
    client = Asked(fleet)
    found: list[dict[str, float]] = []
    reloads = []
    for number in range(1, 1 + REPEATS):
        reloads.append(least(stock, 1))
        client.took.clear()
        own.push(number)
        assert own.last is not None
        asked = {f"asked {path}": seconds for path, seconds in client.took.items()}
        worker = fleet._replicas[0].seconds()[0]  # type: ignore[attr-defined]
        found.append(
            {"whole": own.last.whole_s, "packing": own.last.packing_s}
            | {f"worker {part}": seconds for part, seconds in worker.items()}
            | asked
        )
    own.close()
    return min(found, key=lambda one: one["whole"]) | {"stock reload": min(reloads)}


class Asked:
    """Adds up what the one server's answers take, by path."""

    def __init__(self, fleet: Fleet) -> None:
        client = fleet._replicas[0]._client  # type: ignore[attr-defined]
        self.took: dict[str, float] = {}
        post = type(client).post

        def timed(path: str, body: Any = None, timeout_s: float | None = None) -> Any:
            began = time.perf_counter()
            answer = post(client, path, body, timeout_s)
            self.took[path] = self.took.get(path, 0.0) + time.perf_counter() - began
            return answer

        client.post = timed


def stock_reload(policy: FrozenModel, fleet: Fleet, folder: Path) -> Callable[[], None]:
    """The engine's own reload of these weights, with the pause and the resume that a sync needs too."""
    saved = folder / "saved"
    saved.mkdir()
    writer = ShardWriter(saved, 10 * 2**30)
    for name, tensor in policy.export():
        writer.add(name, tensor)
    writer.finish()
    client = fleet._replicas[0]._client  # type: ignore[attr-defined]
    # the server was started without weights, which it would not load again either
    overrides = {"load_config": {"load_format": "safetensors"}}
    client.post("/collective_rpc", {"method": "update_config", "kwargs": {"overrides": overrides}})

    def reload() -> None:
        client.post("/pause?mode=abort")
        client.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(saved)}})
        client.post("/reset_prefix_cache")
        client.post("/resume")

    reload()
    return reload


def delta_bf16(folder: Path, layout: Any, readers: ReadersWithoutEngine, transport: str) -> dict[str, float]:
    """bf16 weights after a step that moves each fp32 main weight by 1e-6: seconds, and the share that changed."""
    policy = FrozenModel(recipe_of(folder, "bf16"), layout, VOCAB)
    read = random_weights(MODEL, VOCAB, 1)
    policy.load(read)
    found = {"whole": ours_s(policy, folder, readers, transport=transport)}
    readers.fresh = True
    own = SyncWithoutProbe(recipe_of(folder, "bf16", transport=transport, delta=True), policy, readers)
    own.push(0)
    before = {name: tensor.clone() for name, tensor in policy.export()}
    took = []
    for number in (1, 2, 3):

        def moved(name: str, number: int = number) -> Tensor:
            return read(name) + 1e-6 * number

        policy.load(moved)
        own.push(number)
        assert own.last is not None
        took.append(own.last.whole_s)
        if number == 1:
            changed = sum(int((tensor != before[name]).sum()) for name, tensor in policy.export())
            found["share changed"] = changed / sum(tensor.numel() for tensor in before.values())
    own.close()
    return found | {"delta": min(took)}


def main() -> None:
    """Measures, writes and prints."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = recipe_of(folder)
        layout = join_world(recipe.parallel, seed=1)
        policy = FrozenModel(recipe, layout, VOCAB)
        policy.load(random_weights(MODEL, VOCAB, 1))
        fleet = build_fleet(recipe, VOCAB, print)
        readers = ReadersWithoutEngine()
        try:
            fleet.revive()
            nbytes = sum(torch.Size(shape).numel() * dtype.itemsize for _, shape, dtype in policy.export_plan.specs)
            copy = plain_copy_s(policy)
            stock = stock_reload(policy, fleet, folder)
            ways = {
                f"{transport}{', every digest' * (verify == 'always')}": {
                    "ours": ours_s(policy, folder, readers, transport=transport, verify=verify)
                }
                | into_engine(policy, fleet, folder, stock, transport=transport, verify=verify)
                for transport in TRANSPORTS
                for verify in ("sampled", "always")
            }
            delta = {transport: delta_bf16(folder, layout, readers, transport) for transport in TRANSPORTS}
        finally:
            readers.close()
            fleet.close()
        leave_world()
    results = {
        "command": "python benchmarks/sync.py",
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {package: version(package) for package in ("torch", "megatron-core")} | {"vllm": _vllm()},
        "bytes": nbytes,
        "plain_copy_s": copy,
        "ways": {
            way: {part: round(value, 4) for part, value in parts.items()}
            | {
                "ours / plain copy": round(parts["ours"] / copy, 2),
                "stock / whole": round(parts["stock reload"] / parts["whole"], 2),
            }
            for way, parts in ways.items()
        },
        "bf16 delta": {way: {part: round(value, 4) for part, value in parts.items()} for way, parts in delta.items()},
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join([*table(results), "", *delta_table(results)]))


def table(results: dict[str, Any]) -> Iterable[str]:
    """Lines of Markdown."""
    yield "| transport | ours, s | ours / plain copy | pause to resume, s | stock reload / that | engine's loading, s |"
    yield "|---|---|---|---|---|---|"
    for way, parts in results["ways"].items():
        loading = parts["worker load"] + parts["worker finish"]
        yield (
            f"| {way} | {parts['ours']:.3f} | {parts['ours / plain copy']} | {parts['whole']:.3f} "
            f"| {parts['stock / whole']} | {loading:.3f} |"
        )


def delta_table(results: dict[str, Any]) -> Iterable[str]:
    """Lines of Markdown."""
    yield "| transport, bf16 | whole, s | changes only, s | share of values changed |"
    yield "|---|---|---|---|"
    for way, parts in results["bf16 delta"].items():
        yield f"| {way} | {parts['whole']:.3f} | {parts['delta']:.3f} | {parts['share changed']:.1%} |"


def _vllm() -> str:
    import vllm

    return vllm.__version__


if __name__ == "__main__":
    main()
