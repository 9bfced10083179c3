"""A run whose only server is gone for good loses nothing that it did: with a server again it is the unbroken run."""

from pathlib import Path

import psutil
import pytest

from megarl.observe.metrics import reproducible
from tests.engines.simulated import simulated_server
from tests.faults.planted import losing
from tests.forked_runs import train
from tests.runs import metrics

pytestmark = [pytest.mark.parallel, pytest.mark.resume]

SETTINGS = (
    "sft.steps=0",
    "rl.steps=4",
    "checkpoint.every=0",
    "evaluate.samples_per_prompt=0",
    "rollout.engine=vllm",
    "rollout.max_new_tokens=8",
    "engine.start_timeout_s=2",
    # steered and watched by what a step has measured
    "rl.kl={coefficient: 0.05, target: 0.001, horizon: 50}",
    "rl.entropy.alarm_share=0.01",
)


@pytest.mark.parametrize("phase", ["rollout", "update"])
def test_what_was_done_is_kept(phase: str, tmp_path: Path) -> None:
    """Lost as the third step asks for responses, or in its update, behind which the weights have nowhere to go."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    with simulated_server(token_ms=1) as url:
        finished = train(f"output_dir={whole}", *SETTINGS, f"engine.urls=[{url}]")
        assert finished.returncode == 0, finished.stderr
        (server,) = (child.pid for child in psutil.Process().children() if _is_server(child))
        place = [f"output_dir={broken}", *SETTINGS, f"engine.urls=[{url}]"]
        lost = train(*place, start=losing, more=(server, phase, 3))
        assert lost.returncode not in (0, -9), lost.stdout
    done = 2 if phase == "rollout" else 3
    assert [line["step"] for line in metrics(broken)] == list(range(1, done + 1)), lost.stderr
    with simulated_server(token_ms=1) as url:
        resumed = train(f"output_dir={broken}", *SETTINGS, f"engine.urls=[{url}]")
    assert resumed.returncode == 0, resumed.stderr
    assert f"resumed from {broken}/checkpoints/1-rl-{done:08d}" in resumed.stdout
    assert [reproducible(line) for line in metrics(broken)] == [reproducible(line) for line in metrics(whole)]
    assert (broken / "model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()


def _is_server(process: psutil.Process) -> bool:
    return any("simulated_latency_server" in word for word in process.cmdline())
