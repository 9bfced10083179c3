"""The demo's task in emulated FP8, as a user starts it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from megarl.observe.metrics import reproducible
from tests.runs import RECIPE, REPOSITORY, environment, metrics, reached, started, train, wait_until

pytestmark = pytest.mark.presets


def test_blockwise_fp8_learns(tmp_path: Path) -> None:
    """15 steps; the last three's reward is .2 above the first's, and there is the drift of 3 bits."""
    settings = ["model.init_from=tests/data/base", "sft.steps=0", "rl.steps=15", "evaluate.samples_per_prompt=0"]
    fp8 = ["precision.fp8.recipe=blockwise", "precision.fp8.emulation=true"]
    finished = subprocess.run(
        [sys.executable, "-m", "megarl", "train", RECIPE, *settings, *fp8, f"output_dir={tmp_path / 'run'}"],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert finished.returncode == 0, finished.stderr
    lines = metrics(tmp_path / "run")
    rewards = [line["reward/mean"] for line in lines]
    assert len(rewards) == 15
    assert fmean(rewards[-3:]) - rewards[0] > 0.2
    # a policy that is surer of itself drifts less; fp32's mean is 1e-7 from the first step on
    assert all(1e-4 < line["drift/abs_mean"] < 0.1 for line in lines)


def test_delayed_scaling_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Beside bf16 on two tensor ranks, killed with -9 and resumed."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    settings = [
        "precision={dtype: bf16, fp8: {recipe: delayed, emulation: true, history: 4}}",
        "parallel.world_size=2",
        "parallel.tensor=2",
        "rl.steps=8",
        "checkpoint.every=2",
    ]
    finished = train(f"output_dir={whole}", *settings)
    assert finished.returncode == 0, finished.stderr
    with started(f"output_dir={broken}", *settings) as process:
        wait_until(lambda: reached(broken, "rl", 3), process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
    resumed = train(f"output_dir={broken}", *settings)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resumed from {broken}/checkpoints/1-rl-" in resumed.stdout
    assert [reproducible(line) for line in metrics(broken)] == [reproducible(line) for line in metrics(whole)]
    assert (broken / "model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()
