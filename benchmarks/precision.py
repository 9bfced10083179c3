"""Trains the demo task for 15 steps in every precision, and tables what each learned and how far it drifted.

    python benchmarks/precision.py [name ...]     # from the repository's root; one to two minutes a precision

The engine computes in fp32 on the trainer's own weights, so drift is the trainer's precision and nothing else. Writes
benchmarks/precision.json and prints the table of docs/precision.md.
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
from statistics import fmean
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks/precision.json"
DEMO = "recipes/demo/grpo_arithmetic.yaml"

STEPS, LAST, TIMEOUT_S = 15, 5, 900
FP8 = "precision.fp8.emulation=true"
WAYS: dict[str, list[str]] = {
    "fp32": [],
    "fp16": ["precision.dtype=fp16"],
    "bf16": ["precision.dtype=bf16"],
    "bf16, fp32 head": ["precision.dtype=bf16", "precision.fp32_head=true"],
    "bf16, fp32 head and residual": [
        "precision.dtype=bf16",
        "precision.fp32_head=true",
        "precision.fp32_residual=true",
    ],
    "FP8 tensorwise": [FP8, "precision.fp8.recipe=tensorwise"],
    "FP8 delayed": [FP8, "precision.fp8.recipe=delayed"],
    "FP8 blockwise": [FP8, "precision.fp8.recipe=blockwise"],
    "FP8 blockwise, hybrid": [FP8, "precision.fp8.recipe=blockwise", "precision.fp8.format=hybrid"],
    "FP8 blockwise, fp32 scales": [FP8, "precision.fp8.recipe=blockwise", "precision.fp8.block_scales=fp32"],
    "FP8 mxfp8": [FP8, "precision.fp8.recipe=mxfp8"],
    "FP8 blockwise beside bf16": [FP8, "precision.fp8.recipe=blockwise", "precision.dtype=bf16"],
}
"""FP8 is emulated, beside fp32 but in the last."""
SIZES = [
    "model.init_from=tests/data/base",
    "sft.steps=0",
    f"rl.steps={STEPS}",
    "rl.optimizer.lr=5e-4",
    "rl.optimizer.warmup_steps=3",
    "rollout.max_new_tokens=44",
    "evaluate.samples_per_prompt=0",
]
COLUMNS = {
    "drift/abs_mean": "mean drift",
    "drift/abs_p99": "99 %",
    "drift/outside_band_share": "ratios outside .9 to 1.1",
    "drift/k3": "KL (k3)",
    "drift/ess_share": "ESS share",
}


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Trains in one precision, in a process of its own.

    Raises:
        subprocess.CalledProcessError: the run failed; its complaint is on stderr.
        subprocess.TimeoutExpired: it took too long, and was ended.
    """
    output = folder / name.replace(" ", "_")
    subprocess.run(
        [sys.executable, "-m", "megarl", "train", DEMO, *SIZES, *WAYS[name], f"output_dir={output}"],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        check=True,
    )
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward/mean"] for line in lines]
    return {
        "reward_first": rewards[0],
        f"reward_last_{LAST}": fmean(rewards[-LAST:]),
        "entropy_last": lines[-1]["policy/entropy"],
        **{metric: fmean(line[metric] for line in lines) for metric in COLUMNS},
        "overrides": [*SIZES, *WAYS[name]],
    }


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    libraries = {name: version(name) for name in ("torch", "megatron-core")}
    python = platform.python_version()
    return {"cpus": os.cpu_count(), "architecture": platform.machine(), "python": python, **libraries}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    head = ["precision", "reward, step 1", f"last {LAST} of {STEPS}", *COLUMNS.values(), "entropy, last"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, result in results.items():
        drift = [f"{result[metric]:.2g}" for metric in list(COLUMNS)[:-1]]
        rewards = [f"{result['reward_first']:.3f}", f"{result[f'reward_last_{LAST}']:.3f}"]
        cells = [name, *rewards, *drift, f"{result['drift/ess_share']:.3f}", f"{result['entropy_last']:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(wanted: list[str]) -> None:
    """Measures the precisions asked for, or all, and keeps the results of the others."""
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results = stored.get("results", {})
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted or WAYS:
            began = time.monotonic()
            results[name] = measure(name, Path(folder))
            seconds = time.monotonic() - began
            print(f"{name}: {seconds:.0f} s, {results[name]}", file=sys.stderr, flush=True)
    results = {name: results[name] for name in WAYS if name in results}
    report = {"command": "python benchmarks/precision.py", "machine": machine(), "results": results}
    RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main(sys.argv[1:])
