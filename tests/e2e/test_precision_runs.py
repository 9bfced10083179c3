"""The demo's task in emulated FP8."""

from pathlib import Path
from statistics import fmean

import pytest

from megarl.observe.metrics import reproducible
from tests.forked_runs import finished, started, train
from tests.runs import RECIPE, metrics, reached, wait_until

pytestmark = pytest.mark.presets


def test_blockwise_fp8_learns(tmp_path: Path) -> None:
    """15 steps; the last three's reward is .2 above the first's, and there is the drift of 3 bits."""
    settings = ["model.init_from=tests/data/base", "sft.steps=0", "rl.steps=15", "evaluate.samples_per_prompt=0"]
    settings += ["rl.prompts_per_step=8", "rl.micro_batch_size=64"]
    fp8 = ["precision.fp8.recipe=blockwise", "precision.fp8.emulation=true"]
    run = finished([RECIPE, *settings, *fp8, f"output_dir={tmp_path / 'run'}"], timeout_s=400)
    assert run.returncode == 0, run.stderr
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
    unbroken = train(f"output_dir={whole}", *settings)
    assert unbroken.returncode == 0, unbroken.stderr
    with started(f"output_dir={broken}", *settings) as run:
        wait_until(lambda: reached(broken, "rl", 3), run)
        run.kill()
    resumed = train(f"output_dir={broken}", *settings)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resumed from {broken}/checkpoints/1-rl-" in resumed.stdout
    assert [reproducible(line) for line in metrics(broken)] == [reproducible(line) for line in metrics(whole)]
    assert (broken / "model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()
