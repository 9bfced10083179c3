"""Trains the demo task for 20 steps under every preset, and tables what each learned.

    python benchmarks/presets.py [preset ...]     # from the repository's root; about 30 s a preset

Each preset goes on top of the demo's recipe, with sizes and a learning rate of the demo's scale; the algorithm stays
the preset's own. Writes benchmarks/presets.json and prints the table of docs/objectives.md.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PRESETS = REPOSITORY / "recipes/presets"
RESULTS = REPOSITORY / "benchmarks/presets.json"
DEMO = REPOSITORY / "recipes/demo/grpo_arithmetic.yaml"

STEPS, PROMPTS, SAMPLES, MICRO_BATCH = 20, 16, 16, 128
LAST = 5
TIMEOUT_S = 600
# a fifth of the longest response, as DAPO's 4096 of 20480 tokens, and half of the rewards' range
OVERLONG = ("rl.overlong.buffer_tokens=9", "rl.overlong.penalty=0.5")
HAS_OVERLONG_PENALTY = ("dapo", "cispo")
# 16 updates a step would train on one of the 16 prompts each, and at this learning rate undo what the others did
MOST_UPDATES = 4


def names() -> list[str]:
    """The presets, by name."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml") if path.stem != "common")


def recipe_of(name: str, folder: Path) -> Path:
    """Writes a recipe into `folder` that puts the preset on top of the demo's."""
    path = folder / f"{name}.yaml"
    path.write_text(f"defaults: [{DEMO}, {PRESETS / name}.yaml]\nname: {name}\n", encoding="utf-8")
    return path


def demo_scale(name: str, updates_per_step: int) -> list[str]:
    """Overrides that bring a preset, of so many updates a step, to the demo's sizes."""
    updates = min(updates_per_step, MOST_UPDATES)
    return [
        "model.init_from=tests/data/base",
        "sft.steps=0",
        f"rl.steps={STEPS}",
        f"rl.prompts_per_step={PROMPTS}",
        f"rl.samples_per_prompt={SAMPLES}",
        f"rl.updates_per_step={updates}",
        f"rl.micro_batch_size={min(MICRO_BATCH, PROMPTS * SAMPLES // updates)}",
        "rl.optimizer.lr=5e-4",
        "rl.optimizer.warmup_steps=3",
        *(["rl.critic.optimizer.lr=1e-3"] if name == "ppo" else []),
        "rollout.max_new_tokens=44",
        *(OVERLONG if name in HAS_OVERLONG_PENALTY else ()),
        "evaluate.samples_per_prompt=0",
    ]


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Trains one preset in a process of its own.

    Raises:
        subprocess.CalledProcessError: the run failed; its complaint is on stderr.
        subprocess.TimeoutExpired: it took too long, and was ended.
    """
    # megarl is imported late: the table of results needs none of it
    from megarl.config.load import load_recipe

    recipe = recipe_of(name, folder)
    overrides = demo_scale(name, load_recipe(PRESETS / f"{name}.yaml").recipe.rl.updates_per_step)
    run = [*overrides, f"output_dir={folder / name}"]
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "megarl", "train", str(recipe), *run],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        check=True,
    )
    seconds = time.monotonic() - began
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward/mean"] for line in lines]
    return {
        "reward_first": rewards[0],
        f"reward_last_{LAST}": fmean(rewards[-LAST:]),
        "steps": len(rewards),
        "seconds": round(seconds, 1),
        "overrides": overrides,
    }


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    from importlib.metadata import version

    libraries = {name: version(name) for name in ("torch", "megatron-core")}
    python = platform.python_version()
    return {"cpus": os.cpu_count(), "architecture": platform.machine(), "python": python, **libraries}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["| preset | reward, step 1 | last 5 of 20 steps | gain |", "|---|---|---|---|"]
    for name, result in results.items():
        first, last = result["reward_first"], result[f"reward_last_{LAST}"]
        lines.append(f"| `{name}` | {first:.3f} | {last:.3f} | {last - first:+.3f} |")
    return "\n".join(lines)


def main(wanted: list[str]) -> None:
    """Measures the presets asked for, or all, and keeps the results of the others."""
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results = stored.get("results", {})
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted or names():
            results[name] = measure(name, Path(folder))
            print(name, results[name], file=sys.stderr, flush=True)
    results = {name: results[name] for name in names() if name in results}
    report = {"command": "python benchmarks/presets.py", "machine": machine(), "results": results}
    RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main(sys.argv[1:])
