"""Times weight sync of a 500 MB model into a live vLLM and a live SGLang, by each transport that runs here.

    MEGARL_SGLANG_PYTHON=PYTHON python benchmarks/sync.py    # from the repository's root; some minutes

vLLM is this environment's, SGLang that of the interpreter PYTHON; one server lives at a time. Two ratios, each formed
within one run. Ours over a plain copy: gather, digests, packing, transfer and the worker's digests into real readers
that load nothing, over one copy of the same bytes in memory. Stock over whole: the engine's own reload from a folder in
the page cache over megarl's update, from the request to pause until the engine has resumed. Each time is the least of
some repeats. Writes benchmarks/sync.json and prints the tables of docs/engines.md.
"""

import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.sync_live import at_engine, versions_of_engines  # noqa: E402
from benchmarks.sync_recipe import MODEL, TRANSPORTS, VOCAB, WAYS, least, named, recipe_of  # noqa: E402
from megarl.checkpoint.shards import ShardWriter  # noqa: E402
from megarl.megatron.policy import FrozenModel  # noqa: E402
from megarl.megatron.weights import random_weights  # noqa: E402
from megarl.megatron.world import join_world, leave_world  # noqa: E402
from tests.parallel.sync_reader import ReadersWithoutEngine  # noqa: E402
from tests.parallel.sync_without_probe import SyncWithoutProbe  # noqa: E402

RESULTS = REPOSITORY / "benchmarks/sync.json"


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


def saved_weights(policy: FrozenModel, folder: Path) -> Path:
    """The weights in a folder of Hugging Face's kind."""
    saved = folder / "saved"
    saved.mkdir()
    writer = ShardWriter(saved, 10 * 2**30)
    for name, tensor in policy.export():
        writer.add(name, tensor)
    writer.finish()
    return saved


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
    readers = ReadersWithoutEngine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = recipe_of(folder)
        layout = join_world(recipe.parallel, seed=1)
        policy = FrozenModel(recipe, layout, VOCAB)
        policy.load(random_weights(MODEL, VOCAB, 1))
        nbytes = sum(torch.Size(shape).numel() * dtype.itemsize for _, shape, dtype in policy.export_plan.specs)
        saved = saved_weights(policy, folder)
        try:
            copy = plain_copy_s(policy)
            ours = {
                named(transport, verify): round(ours_s(policy, folder, readers, transport=transport, verify=verify), 4)
                for transport, verify in WAYS
            }
            engines = {engine: at_engine(engine, policy, folder, saved) for engine in versions_of_engines()}
            delta = {transport: delta_bf16(folder, layout, readers, transport) for transport in TRANSPORTS}
        finally:
            readers.close()
        leave_world()
    results = {
        "command": "python benchmarks/sync.py",
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()},
        "versions": {package: version(package) for package in ("torch", "megatron-core")} | versions_of_engines(),
        "bytes": nbytes,
        "plain_copy_s": round(copy, 4),
        "ours": {way: {"s": seconds, "ours / plain copy": round(seconds / copy, 2)} for way, seconds in ours.items()},
        "engines": {
            engine: {
                way: parts | {"stock / whole": round(parts["stock reload"] / parts["whole"], 2)}
                for way, parts in ways.items()
            }
            for engine, ways in engines.items()
        },
        "bf16 delta": {way: {part: round(value, 4) for part, value in parts.items()} for way, parts in delta.items()},
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join([*ours_table(results), "", *engines_table(results), "", *delta_table(results)]))


def ours_table(results: dict[str, Any]) -> Iterable[str]:
    """Lines of Markdown."""
    yield "| transport | ours, s | ours / plain copy |"
    yield "|---|---|---|"
    for way, parts in results["ours"].items():
        yield f"| {way} | {parts['s']:.3f} | {parts['ours / plain copy']} |"


def engines_table(results: dict[str, Any]) -> Iterable[str]:
    """Lines of Markdown. Its loading is what vLLM's worker says, and what SGLang's update endpoint takes to answer."""
    yield "| engine, transport | pause to resume, s | stock reload, s | stock / whole | the engine's loading, s |"
    yield "|---|---|---|---|---|"
    for engine, ways in results["engines"].items():
        for way, parts in ways.items():
            loading = parts.get("asked /update_weights_from_tensor")
            if loading is None:
                loading = parts["worker load"] + parts["worker finish"]
            yield (
                f"| {engine}, {way} | {parts['whole']:.3f} | {parts['stock reload']:.3f} | {parts['stock / whole']} "
                f"| {loading:.3f} |"
            )


def delta_table(results: dict[str, Any]) -> Iterable[str]:
    """Lines of Markdown."""
    yield "| transport, bf16 | whole, s | changes only, s | share of values changed |"
    yield "|---|---|---|---|"
    for way, parts in results["bf16 delta"].items():
        yield f"| {way} | {parts['whole']:.3f} | {parts['delta']:.3f} | {parts['share changed']:.1%} |"


if __name__ == "__main__":
    main()
