"""What batch-invariant arithmetic costs: seconds of each phase of the demo's steps, with the key and without it.

    python benchmarks/batch_invariant.py [fp32] [bf16] [products]     # from the repository's root, some minutes

Writes benchmarks/batch_invariant.json. Runs with and without the key take turns, one thread each, so that a machine
that slows down slows both. Ratios are of medians over all steps but each run's first.
"""

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
import torch.nn.functional as F

from megarl.platform.invariant.linear import linear

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks/batch_invariant.json"
RECIPE = "recipes/demo/grpo_arithmetic.yaml"
STEPS, TURNS, TIMEOUT_S = 6, 2, 900
RUN = ("model.init_from=tests/data/base", "sft.steps=0", f"rl.steps={STEPS}", "evaluate.samples_per_prompt=0")
PHASES = ("rollout", "log_probs", "update", "step")
DTYPES = ("fp32", "bf16")
SIZES, TOKENS, REPEATS = (256, 1024, 2048), 1024, 9


def steps(dtype: str, invariant: bool) -> list[dict[str, Any]]:
    """The metrics of a run's steps but the first."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "megarl", "train", RECIPE, *RUN, f"output_dir={folder}/run"]
        command += [f"precision.dtype={dtype}", f"precision.batch_invariant={str(invariant).lower()}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
        subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, capture_output=True, timeout=TIMEOUT_S)
        lines = Path(folder, "run/metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["phase"] == "rl"][1:]


def compared(dtype: str) -> dict[str, Any]:
    """Seconds of each phase without the key and with it, their ratio, and the largest drift of each."""
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for _ in range(TURNS):
        for invariant in found:
            found[invariant] += steps(dtype, invariant)
    result: dict[str, Any] = {
        "drift_abs_max": {
            name: max(line["drift/abs_max"] for line in found[key]) for key, name in ((False, "off"), (True, "on"))
        }
    }
    for phase in PHASES:
        off, on = (median(line[f"seconds/{phase}"] for line in found[key]) for key in (False, True))
        result[phase] = {"off_s": off, "on_s": on, "ratio": on / off}
    return result


def products() -> dict[str, Any]:
    """Seconds of one linear layer's forward pass, square, on one thread: ordinary and batch-invariant, taking turns."""
    torch.set_num_threads(1)
    found = {}
    for size in SIZES:
        x, weight = torch.randn(TOKENS, size), torch.randn(size, size)
        seconds: dict[str, list[float]] = {"off_s": [], "on_s": []}
        for _ in range(REPEATS):
            for name, function in (("off_s", F.linear), ("on_s", linear)):
                begin = time.perf_counter()
                function(x, weight)
                seconds[name].append(time.perf_counter() - begin)
        off, on = (median(seconds[name]) for name in ("off_s", "on_s"))
        found[str(size)] = {"tokens": TOKENS, "off_s": off, "on_s": on, "ratio": on / off}
    return found


def main(wanted: list[str]) -> None:
    """Measures what is asked for, or all, keeps the results of the rest, prints and writes them."""
    results = json.loads(RESULTS.read_text())["results"] if RESULTS.exists() else {}
    for name in wanted or [*DTYPES, "products"]:
        results[name] = products() if name == "products" else compared(name)
    libraries = {name: version(name) for name in ("torch", "megatron-core")}
    machine = {"cpus": os.cpu_count(), "architecture": platform.machine(), **libraries}
    report = {"command": "python benchmarks/batch_invariant.py", "machine": machine, "results": results}
    RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print("| | " + " | ".join(PHASES) + " | largest drift, off | on |\n|" + "---|" * (len(PHASES) + 3))
    for dtype in DTYPES:
        ratios = " | ".join(f"{results[dtype][phase]['ratio']:.1f}" for phase in PHASES)
        drift = results[dtype]["drift_abs_max"]
        print(f"| {dtype} | {ratios} | {drift['off']:.2g} | {drift['on']:g} |")
    for size, product in results["products"].items():
        print(f"a layer of {size} x {size}, {TOKENS} tokens: {product['ratio']:.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
