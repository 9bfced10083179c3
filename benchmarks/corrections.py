"""Trains the demo's task on rollouts of a mismatched engine, under each correction, and tables what became of it.

    python benchmarks/corrections.py [correction ...]    # from the repository's root; about a minute a run
    python benchmarks/corrections.py --table             # the tables of what is there, without a run

All runs start from one policy; a seed is that of the prompts and of the sampling. Writes benchmarks/corrections.json
after each run, does not repeat the runs that it holds, and prints the tables of docs/drift.md. What the engine does
otherwise is said in benchmarks/mismatched.py.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from megarl.observe.files import write_atomic  # noqa: E402 - megarl need not be installed

RESULTS = REPOSITORY / "benchmarks/corrections.json"
DEMO = "recipes/demo/grpo_arithmetic.yaml"
MATCHED = "no mismatch"
STEPS, LAST = 12, 4
TIMEOUT_S = 1800
SIZES = [
    "model.init_from=tests/data/base",
    "sft.steps=0",
    f"rl.steps={STEPS}",
    "rl.prompts_per_step=64",
    "rl.updates_per_step=8",
    "rl.micro_batch_size=128",
    "rl.optimizer.lr=7e-4",
    "rl.optimizer.beta2=0.999",
    "rl.optimizer.clip_grad=0",
    "rl.measure_reference=false",
    "rollout.temperature=0.8",
    "evaluate.samples_per_prompt=8",
    "evaluate.ks=[1]",
    "checkpoint.every=0",
]
DECOUPLED = "rl.correction.mode=decoupled"
K2_5 = [
    "rl.correction.mode=bypass",
    "rl.objective.name=k2_5",
    "rl.objective.clip_low=null",
    "rl.objective.clip_high=null",
    "rl.advantage=dr_grpo",
    "rl.optimizer.lr=2e-4",
]
WAYS: dict[str, list[str]] = {
    "none": [],
    "tis": [DECOUPLED, "rl.correction.weighting=tis"],
    "icepop": [DECOUPLED, "rl.correction.weighting=icepop"],
    "geometric": [DECOUPLED, "rl.correction.reject_geometric=[0.909,1.1]"],
    "k2_5": [*K2_5, "rl.objective.tau=1e-4"],
    MATCHED: [],
    "none, gradients clipped": ["rl.optimizer.clip_grad=1"],
    "none, rate 2e-4": ["rl.optimizer.lr=2e-4"],
    "auto": ["drift.correction=auto"],
    "k2_5, tau 1e-3": K2_5,
}
"""Overrides by name. k2_5's own ratio is policy / engine, so that its band is the correction."""
COMPARED = ("none", "tis", "icepop", "geometric", "k2_5")
"""What is run with every seed."""


@dataclass(frozen=True)
class Setting:
    """An engine, and who is trained on it.

    Attributes:
        mismatch: arguments of benchmarks/mismatched.py.
        overrides: of the recipe.
        seeds: of each way that is run, in the table's order.
    """

    mismatch: list[str]
    overrides: list[str]
    seeds: dict[str, tuple[int, ...]]


HOTTER = ["--temperature", "1.25"]
"""0.8 times this is 1."""
SEEDS = (3, 4, 5)
"""None of those that the setting was chosen with, which are 0, 1, 2, 10 and 11."""
SETTINGS = {
    "4 and 3 bits": Setting(
        ["--weight-bits", "4", "--input-bits", "3", *HOTTER],
        [],
        {way: SEEDS if way in COMPARED else SEEDS[:1] for way in WAYS},
    ),
}
"""By what the engine rounds to: weights and inputs."""
SERIES = {
    "reward/mean": "reward",
    "policy/entropy": "entropy",
    "drift/abs_mean": "abs_mean",
    "drift/k3": "k3",
    "drift/ess_share": "ess_share",
    "drift/token_ess_share": "token_ess_share",
    "policy/grad_norm": "grad_norm",
    "correction/kept_share": "kept_share",
}
"""What is kept of every step, by its name in metrics.jsonl."""


def measure(setting: str, way: str, seed: int, folder: Path) -> dict[str, Any]:
    """One run, in a process of its own.

    Raises:
        subprocess.CalledProcessError: it failed; its complaint is on stderr.
        subprocess.TimeoutExpired: it took too long, and was ended.
    """
    output = folder / f"{way}-{seed}"
    mismatch = [] if way == MATCHED else SETTINGS[setting].mismatch
    overrides = [*SIZES, *SETTINGS[setting].overrides, *WAYS[way], f"seed={seed}"]
    subprocess.run(
        [sys.executable, "benchmarks/mismatched.py", *mismatch, DEMO, *overrides, f"output_dir={output}"],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        check=True,
    )
    return {
        **series_of(_lines(output / "metrics.jsonl")),
        **pass_at_1_of(output),
        "mismatch": mismatch,
        "overrides": overrides,
    }


def series_of(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The measures of every step, to four digits; None where a step has none."""
    found = {name: [line.get(metric) for line in lines] for metric, name in SERIES.items()}
    return {
        name: [None if value is None else float(f"{value:.4g}") for value in values]
        for name, values in found.items()
        if any(value is not None for value in values)
    }


def pass_at_1_of(output: Path) -> dict[str, Any]:
    """The policy's own pass@1 by step, the one before training included."""
    before = json.loads((output / "evaluations.json").read_text())["before"]["pass_at_k"][0]
    lines = _lines(output / "pass_at_1.jsonl")
    return {"pass_at_1": {"0": round(before, 4), **{str(line["step"]): round(line["pass_at_1"], 4) for line in lines}}}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(results: dict[str, dict[str, Any]]) -> str:
    """The results as Markdown: a run's last pass@1 each, and means over the seeds."""
    head = [
        "correction",
        "pass@1 at the end, by seed",
        "best pass@1",
        f"rollouts' reward, last {LAST}",
        "entropy",
        r"mean \|D\|",
        "KL (k3)",
        "ESS of tokens",
        "ESS of responses",
        "largest gradient norm",
    ]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for way in WAYS:
        runs = [results[way][seed] for seed in sorted(results.get(way, {}), key=int)]
        if runs:
            lines.append(f"| {' | '.join([f'`{way}`', *_cells(runs)])} |")
    return "\n".join(lines)


def _cells(runs: Sequence[dict[str, Any]]) -> list[str]:
    ends = ", ".join(f"{list(run['pass_at_1'].values())[-1]:.2f}" for run in runs)
    best = fmean(max(run["pass_at_1"].values()) for run in runs)
    return [
        ends,
        f"{best:.2f}",
        f"{_last(runs, 'reward'):.2f}",
        f"{_last(runs, 'entropy'):.2g}",
        f"{_last(runs, 'abs_mean'):.2g}",
        f"{_last(runs, 'k3'):.2g}",
        f"{_last(runs, 'token_ess_share'):.2f}",
        f"{_last(runs, 'ess_share'):.2f}",
        f"{max(max(run['grad_norm']) for run in runs):.2g}",
    ]


def _last(runs: Sequence[dict[str, Any]], name: str) -> float:
    """Mean over the last steps of all runs that have the measure."""
    return fmean(value for run in runs for value in run[name][-LAST:] if value is not None)


def as_text(report: dict[str, Any]) -> bytes:
    """JSON with a run's series a line each, or the file would have a line a number."""
    text = json.dumps(report, indent=1)
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text).encode() + b"\n"


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    libraries = {name: version(name) for name in ("torch", "megatron-core", "transformers")}
    return {
        "cpus": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        **libraries,
    }


def main() -> None:
    """Measures what is missing and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--setting", choices=SETTINGS, help="only this one")
    parser.add_argument("ways", nargs="*", choices=[[], *WAYS], metavar="correction", help="only these")
    arguments = parser.parse_args()
    settings = [arguments.setting] if arguments.setting else list(SETTINGS)
    results: dict[str, Any] = json.loads(RESULTS.read_text())["results"] if RESULTS.exists() else {}
    for setting, way, seed in [] if arguments.table else runs(settings, arguments.ways or list(WAYS)):
        if str(seed) in results.get(setting, {}).get(way, {}):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = measure(setting, way, seed, Path(folder))
        results.setdefault(setting, {}).setdefault(way, {})[str(seed)] = found
        report = {"command": "python benchmarks/corrections.py", "machine": machine(), "results": results}
        write_atomic(RESULTS, as_text(report))
        print(f"{setting}, {way}, seed {seed}: {found['pass_at_1']}", file=sys.stderr, flush=True)
    for setting in results:
        print(f"{setting}\n\n{table(results[setting])}\n")


def runs(settings: Sequence[str], ways: Sequence[str]) -> list[tuple[str, str, int]]:
    """Setting, correction and seed of every run of these: a setting's runs seed by seed."""
    every = [
        (setting, way, seed)
        for setting in settings
        for way, seeds in SETTINGS[setting].seeds.items()
        for seed in seeds
        if way in ways
    ]
    return sorted(every, key=lambda run: (settings.index(run[0]), run[2]))


if __name__ == "__main__":
    main()
