"""Saves a model and its optimizer at once and in the background, and compares how long training stands still.

    python benchmarks/checkpoint.py [folder]      # from the repository's root; minutes

One process, 34 million parameters, so 0.4 GB of weights and moments in fp32, below `folder` (of a temporary one where
it is left out). Saves take turns; between two of them the policy makes an update, during which the background writes.
A save at once is timed from its call to its return; of one in the background all that the training thread does is: the
call, each look whether it is done, and its completion. Writes benchmarks/checkpoint.json.
"""

import json
import os
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import megarl.megatron  # noqa: F401 - before torch.distributed is used

# isort: split
import torch

from megarl.config.load import load_recipe
from megarl.loop.folder import claim_folder
from megarl.loop.journal import Journal
from megarl.loop.run import Run, build_run, facts
from megarl.loop.start import start
from megarl.loop.stop import StopFlag
from megarl.megatron.batch import pad_batch
from megarl.megatron.world import join_world, leave_world
from megarl.objectives import SFT

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks/checkpoint.json"
SAVES = 5
SIZES = [
    "model.num_layers=8",
    "model.hidden_size=512",
    "model.ffn_hidden_size=2048",
    "model.num_attention_heads=8",
    "model.num_query_groups=8",
    "model.head_dim=64",
    "sft.steps=0",
    "checkpoint.keep=2",
]


def measure(folder: Path) -> dict[str, Any]:
    """Seconds of each save, and the bytes of one."""
    recipe = load_recipe("recipes/demo/grpo_arithmetic.yaml", [*SIZES, f"output_dir={folder / 'run'}"]).recipe
    layout = join_world(recipe.parallel, recipe.seed)
    lock = claim_folder(recipe, facts())
    seconds: dict[str, list[float]] = {"at once": [], "in the background": []}
    with Journal(recipe, is_main=True) as journal:
        run = build_run(recipe, layout, journal, StopFlag())
        start(run)
        update(run)
        for number in range(2 * (SAVES + 1)):
            background = number % 2 == 1
            recipe.checkpoint.background = background
            stall = timed_save(run, wait=not background)
            # the first of each finds nothing in place
            if number >= 2:
                seconds["in the background" if background else "at once"].append(stall)
            print(f"{'in the background' if background else 'at once'}: {stall:.3f} s", file=sys.stderr, flush=True)
        newest = folder / "run/checkpoints" / run.store.names()[-1]
        bytes_of_one = sum(file.stat().st_size for file in newest.glob("policy/*"))
        run.close()
    lock.close()
    leave_world()
    at_once, stalled = (median(values) for values in seconds.values())
    return {"bytes": bytes_of_one, "seconds": seconds, "ratio_of_medians": stalled / at_once}


def timed_save(run: Run, *, wait: bool) -> float:
    """Seconds that the training thread spends on a save of a state that was not saved yet."""
    run.state.step += 1
    spent = -time.perf_counter()
    run.save(wait=wait)
    spent += time.perf_counter()
    while run.saver.is_writing:
        update(run)
        spent -= time.perf_counter()
        run.saver.poll()
        spent += time.perf_counter()
    if wait:
        update(run)
    return spent


def update(run: Run) -> None:
    """One update on a fixed batch."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, run.policy.vocab_size, (4, 64), generator=generator).tolist()
    batch = pad_batch([row[:8] for row in rows], [row[8:] for row in rows], torch.device("cpu"))
    run.policy.update(batch, SFT(), micro_batch_size=2)


def main(arguments: list[str]) -> None:
    """Measures below the folder given, or below a temporary one."""
    with tempfile.TemporaryDirectory(dir=arguments[0] if arguments else None) as folder:
        results = measure(Path(folder))
    libraries = {name: version(name) for name in ("torch", "megatron-core")}
    machine = {
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        **libraries,
    }
    report = {"command": "python benchmarks/checkpoint.py", "machine": machine, "results": results}
    RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
