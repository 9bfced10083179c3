"""Saves a model and its optimizer at once and in the background, and compares how long training stands still.

    python benchmarks/checkpoint.py [folder]      # from the repository's root; minutes

One process, 34 million parameters, so 0.4 GB of weights and moments in fp32, below `folder` (of a temporary one where
it is left out). Saves take turns; after each the policy makes updates, during which the background copies and writes.
A save at once is timed from its call to its return. Of one in the background all that the training thread does is, or
waits for: the call, the copy where an update would change what is not copied yet, each look whether it is done, and its
completion. The updates that have no save beside them, and those that do, are timed too: on a machine without a core to
spare a thread in the background slows them. Writes benchmarks/checkpoint.json.
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
from megarl.loop.run import Run, build_run
from megarl.loop.software import facts
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
    """Seconds of each save and of the updates between them, and the bytes of one save."""
    recipe = load_recipe("recipes/demo/grpo_arithmetic.yaml", [*SIZES, f"output_dir={folder / 'run'}"]).recipe
    layout = join_world(recipe.parallel, recipe.seed)
    lock = claim_folder(recipe, facts())
    with Journal(recipe, is_main=True) as journal:
        run = build_run(recipe, layout, journal, StopFlag())
        start(run)
        timed = TimedRun(run)
        timed.update()
        for number in range(2 * (SAVES + 1)):
            # the first of each finds nothing in place
            timed.save(in_background=number % 2 == 1, counts=number >= 2)
        newest = folder / "run/checkpoints" / run.store.names()[-1]
        bytes_of_one = sum(file.stat().st_size for file in newest.glob("policy/*"))
        run.close()
    lock.close()
    leave_world()
    at_once, stalled = (median(timed.seconds[name]) for name in ("at once", "in the background"))
    return {"bytes": bytes_of_one, "seconds": timed.seconds, "ratio_of_medians": stalled / at_once}


class TimedRun:
    """A run whose training thread is timed."""

    def __init__(self, run: Run) -> None:
        self.run = run
        names = ("at once", "in the background", "update alone", "update beside a save", "waited for copies")
        self.seconds: dict[str, list[float]] = {name: [] for name in names}
        self._released, self._waited = run.policy.release, 0.0
        run.policy.release = self._release  # type: ignore[method-assign]

    def save(self, *, in_background: bool, counts: bool) -> None:
        """One save of a state that was not saved yet, and updates until it is over."""
        run, kind = self.run, "in the background" if in_background else "at once"
        run.recipe.checkpoint.background = in_background
        run.state.step += 1
        self._waited = 0.0
        spent = -time.perf_counter()
        run.save(wait=not in_background)
        spent += time.perf_counter()
        beside = []
        while run.saver.is_writing:
            beside.append(self.update())
            spent -= time.perf_counter()
            run.saver.poll()
            spent += time.perf_counter()
        alone = [self.update()]
        spent += self._waited
        print(f"{kind}: {spent:.3f} s", file=sys.stderr, flush=True)
        if counts:
            self.seconds[kind].append(spent)
            self.seconds["update alone"] += alone
            self.seconds["update beside a save"] += beside
            self.seconds["waited for copies"] += [self._waited] * in_background

    def update(self) -> float:
        """One update on a fixed batch; its seconds, without those that it waits for a copy."""
        waited = self._waited
        generator = torch.Generator().manual_seed(0)
        rows = torch.randint(0, self.run.policy.vocab_size, (4, 64), generator=generator).tolist()
        batch = pad_batch([row[:8] for row in rows], [row[8:] for row in rows], torch.device("cpu"))
        begin = time.perf_counter()
        self.run.policy.update(batch, SFT(), micro_batch_size=2)
        return time.perf_counter() - begin - (self._waited - waited)

    def _release(self) -> None:
        begin = time.perf_counter()
        self._released()
        self._waited += time.perf_counter() - begin


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
    command = " ".join(["python benchmarks/checkpoint.py", *arguments])
    report = {"command": command, "machine": machine, "results": results}
    RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
