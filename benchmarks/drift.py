"""What measuring drift costs: its share of a step of the demo, and the time of large batches.

    python benchmarks/drift.py        # from the repository's root, about two minutes; writes benchmarks/drift.json

The share is of one run's own clock, `seconds/drift` over `seconds/step` of each step, so a busy machine slows both.
The large batches are of made-up log-probs on one thread: a million tokens and more, with all groups.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from megarl.drift import drift_metrics

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks/drift.json"
RECIPE = "recipes/demo/grpo_arithmetic.yaml"
STEPS = 20
RUN = ("model.init_from=tests/data/base", "sft.steps=0", f"rl.steps={STEPS}", "evaluate.samples_per_prompt=0")
VOCABULARY = 151_936
BATCHES = ((256, 4096), (64, 20_000), (1024, 4096))


def share_of_a_step() -> dict[str, Any]:
    """Of the demo at its own sizes, over the steps of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "megarl", "train", RECIPE, *RUN, f"output_dir={folder}/run"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
        subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, capture_output=True, timeout=1800)
        text = Path(folder, "run/metrics.jsonl").read_text()
    steps = [line for line in map(json.loads, text.splitlines()) if line["phase"] == "rl"]
    shares = sorted(line["seconds/drift"] / line["seconds/step"] for line in steps)
    return {
        "steps": len(steps),
        "tokens_a_step": median(line["drift/tokens"] for line in steps),
        "seconds_step": median(line["seconds/step"] for line in steps),
        "seconds_drift": median(line["seconds/drift"] for line in steps),
        "share_of_all": sum(line["seconds/drift"] for line in steps) / sum(line["seconds/step"] for line in steps),
        "share_median": median(shares),
        "share_max": shares[-1],
    }


def large_batch(rows: int, width: int, repeats: int = 3) -> dict[str, Any]:
    """Time of every measure of rows x width tokens; the best of some repeats."""
    generator = torch.Generator().manual_seed(0)
    rollout = -5 * torch.rand(rows, width, generator=generator)
    trainer = rollout + 0.01 * torch.randn(rows, width, generator=generator)
    ids = torch.randint(VOCABULARY, (rows, width), generator=generator)
    mask = torch.arange(width)[None] < torch.randint(1, width + 1, (rows, 1), generator=generator)
    groups = {
        "token_ids_BT": ids,
        "classes_V": torch.zeros(VOCABULARY, dtype=torch.int64),
        "replicas_BT": ids % 4,
        "ages_BT": ids % 3,
    }
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        drift_metrics(trainer, rollout, mask, **groups)
        taken.append(time.perf_counter() - begin)
    tokens = int(mask.sum())
    return {"rows": rows, "width": width, "tokens": tokens, "seconds": min(taken), "tokens_per_s": tokens / min(taken)}


def main() -> None:
    """Measures, prints and writes the results."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    results = {
        "command": "python benchmarks/drift.py",
        "machine": {
            "cpus": os.cpu_count(),
            "architecture": platform.machine(),
            "python": platform.python_version(),
            "torch": version("torch"),
            "megatron-core": version("megatron-core"),
        },
        "demo": share_of_a_step(),
        "large": [large_batch(*size) for size in BATCHES],
    }
    text = json.dumps(results, indent=2)
    RESULTS.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
