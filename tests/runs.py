"""Starts `megarl train` as a user does, as its own process, on a demo that is cut down to seconds."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
RECIPE = "recipes/demo/grpo_arithmetic.yaml"
TINY = (
    # a policy that solves some problems: without rewards that differ there are no gradients to compare
    "model.init_from=tests/data/base",
    "sft.steps=6",
    "sft.optimizer.lr=1e-4",
    "sft.optimizer.warmup_steps=0",
    "rl.optimizer.warmup_steps=0",
    "sft.batch_size=8",
    "sft.micro_batch_size=4",
    "rl.steps=16",
    "rl.prompts_per_step=4",
    "rl.samples_per_prompt=4",
    "rl.micro_batch_size=4",
    "rollout.max_new_tokens=16",
    "data.eval_prompts=8",
    "evaluate.samples_per_prompt=4",
    "evaluate.ks=[1,4]",
    "checkpoint.every=4",
)
"""Overrides under which a run takes seconds once its imports are over."""


class Running(Protocol):
    """A run in the background: its exit code once it has one, and what it prints."""

    def poll(self) -> int | None: ...

    @property
    def stdout(self) -> IO[str] | None: ...


def command(*overrides: str) -> list[str]:
    """The command line of a tiny run."""
    return [sys.executable, "-m", "megarl", "train", RECIPE, *TINY, *overrides]


def environment(**more: str) -> dict[str, str]:
    """This process's environment without a launcher's, one thread a process."""
    joined = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    kept = {name: value for name, value in os.environ.items() if name not in joined}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}


def train(*overrides: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """Runs a tiny run to its end and returns its output."""
    return subprocess.run(
        command(*overrides), cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=timeout_s
    )


@contextmanager
def started(*overrides: str) -> Iterator[subprocess.Popen[str]]:
    """A tiny run in the background, in a session of its own; killed with all it started on the way out."""
    process = subprocess.Popen(
        command(*overrides),
        cwd=REPOSITORY,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        family = [] if process.poll() is not None else psutil.Process(process.pid).children(recursive=True)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        for child in family:
            if child.is_running():
                child.kill()
        process.wait(timeout=30)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's metrics."""
    file = folder / "metrics.jsonl"
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def undocumented(keys: Iterable[str]) -> list[str]:
    """The metrics that neither docs/metrics.md nor docs/drift.md names."""
    text = (REPOSITORY / "docs/metrics.md").read_text() + (REPOSITORY / "docs/drift.md").read_text()
    named = {name for given in re.findall(r"`([^`\n]+)`", text) for name in _expanded(given)}
    # of servers and ages there are as many as a run has
    plain = {key: re.sub(r"(replica|age)_\d+", r"\1_N", key) for key in keys}
    return sorted(key for key, name in plain.items() if name not in named and name.removeprefix("drift/") not in named)


def _expanded(name: str) -> list[str]:
    """All names that one with {alternatives} stands for."""
    begin, brace, rest = name.partition("{")
    if not brace:
        return [name]
    middle, _, end = rest.partition("}")
    return [begin + each + tail for each in middle.split(",") for tail in _expanded(end)]


def wait_until(condition: Callable[[], bool], run: Running, timeout_s: float = 180) -> None:
    """Waits for the condition; fails with the run's output where it ends or takes too long before."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        status = run.poll()
        assert status is None, f"the run ended with {status}: {run.stdout and run.stdout.read()}"
        assert time.monotonic() < deadline, "the run did not come so far in time"
        time.sleep(0.02)


def reached(folder: Path, phase: str, step: int) -> bool:
    """Whether the run has written the metrics of that step."""
    return any(line["phase"] == phase and line["step"] >= step for line in metrics(folder))
