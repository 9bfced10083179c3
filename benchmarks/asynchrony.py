"""Tokens a second with generation beside training, against one after the other, where both take equally long.

    python benchmarks/asynchrony.py     # from the repository's root; about ten minutes

The engine's latency is simulated and stated: tests/engines/simulated_latency_server.py waits for each token, so that
generation takes no core from the trainer, as on devices of its own. Modes are run in rounds, one after another: in each
a first synchronous run measures the trainer's part of a step, and the latency of a token is set to make generation as
long. The table has each mode's median over the rounds, of its tokens a second against the same round's synchronous run
too, so that other work on the machine counts the least. Writes benchmarks/asynchrony.json and prints the table of
docs/asynchrony.md.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.engines.simulated import simulated_server  # noqa: E402 - the tests are no package that is installed

RESULTS = REPOSITORY / "benchmarks/asynchrony.json"
DEMO = "recipes/demo/grpo_arithmetic.yaml"
ROUNDS = 3
STEPS, FIRST = 12, 3
"""Steps of a run, and the first that counts: the ones before have nothing under way yet."""
TOKENS, PROMPTS, GROUP = 32, 16, 16
TIMEOUT_S = 600
CORRECTION = ["rl.correction.mode=decoupled", "rl.correction.weighting=tis"]
MODES: dict[str, list[str]] = {
    "sync": [],
    "one_step_off": ["rl.asynchrony.mode=one_step_off", *CORRECTION],
    "fully_async, 1": ["rl.asynchrony.mode=fully_async", *CORRECTION],
    "fully_async, 2": ["rl.asynchrony.mode=fully_async", "rl.asynchrony.max_staleness=2", *CORRECTION],
}
BOUNDS = {"sync": 0, "one_step_off": 1, "fully_async, 1": 1, "fully_async, 2": 2}
"""Largest age of a token, in updates."""
SIZES = [
    "model.init_from=tests/data/base",
    "sft.steps=0",
    f"rl.steps={STEPS}",
    f"rl.prompts_per_step={PROMPTS}",
    f"rl.samples_per_prompt={GROUP}",
    "rl.optimizer.warmup_steps=3",
    "evaluate.samples_per_prompt=0",
    "checkpoint.every=0",
    "rollout.engine=vllm",
    f"engine.max_concurrent={PROMPTS * GROUP}",
]


def measure(mode: str, url: str, folder: Path) -> dict[str, Any]:
    """Trains in one mode, in a process of its own.

    Raises:
        subprocess.CalledProcessError: the run failed; its complaint is on stderr.
        subprocess.TimeoutExpired: it took too long, and was ended.
    """
    output = folder / f"{mode.replace(', ', '_')}-{time.monotonic_ns()}"
    places = [f"engine.urls=[{url}]", f"output_dir={output}"]
    subprocess.run(
        [sys.executable, "-m", "megarl", "train", DEMO, *SIZES, *MODES[mode], *places],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        check=True,
    )
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()][FIRST - 1 :]
    seconds = fmean(line["seconds/step"] for line in lines)
    waited = fmean(line.get("seconds/rollout", line.get("seconds/generation_wait")) for line in lines)
    return {
        "tokens_per_s": fmean(line["drift/tokens"] for line in lines) / seconds,
        "step_s": seconds,
        "waited_s": waited,
        "rest_s": seconds - waited,
        "staleness_mean": fmean(line.get("staleness/mean", 0.0) for line in lines),
        "staleness_max": max(line.get("staleness/max", 0.0) for line in lines),
        "spanning_share": fmean(line.get("staleness/spanning_share", 0.0) for line in lines),
    }


def measure_round(folder: Path) -> dict[str, dict[str, Any]]:
    """Every mode once, with the latency that makes the synchronous run's two parts equal as the machine is now."""
    sizes: dict[str, Any] = {"tokens": (TOKENS, TOKENS), "slots": PROMPTS * GROUP}
    with simulated_server(token_ms=1, **sizes) as url:
        token_ms = 1000 * measure("sync", url, folder)["rest_s"] / TOKENS
    with simulated_server(token_ms=token_ms, **sizes) as url:
        found = {mode: measure(mode, url, folder) for mode in MODES}
    for mode, row in found.items():
        assert row["staleness_max"] <= BOUNDS[mode], mode
        row["simulated_token_ms"] = token_ms
        row["speedup"] = row["tokens_per_s"] / found["sync"]["tokens_per_s"]
    return found


def main() -> None:
    """Measures every mode, writes the results and prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = [measure_round(Path(folder)) for _ in range(ROUNDS)]
    medians = {
        mode: {name: median(found[mode][name] for found in rounds) for name in rounds[0][mode]} for mode in MODES
    }
    about = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()}
    about |= {"steps": STEPS - FIRST + 1, "tokens": TOKENS, "responses": PROMPTS * GROUP}
    RESULTS.write_text(json.dumps({"about": about, "medians": medians, "rounds": rounds}, indent=1) + "\n")
    print("| mode | tokens/s | against sync | step, s | waited for generation, s | staleness, mean and max |")
    print("|---|---|---|---|---|---|")
    for mode, row in medians.items():
        print(
            f"| {mode} | {row['tokens_per_s']:,.0f} | {row['speedup']:.2f} | {row['step_s']:.2f} | "
            f"{row['waited_s']:.2f} | {row['staleness_mean']:.2f}, {row['staleness_max']:.0f} |"
        )


if __name__ == "__main__":
    main()
