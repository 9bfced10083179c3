"""A run that waits for a server which is gone, and is stopped, saves what it has, as at any other point."""

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from megarl.checkpoint.names import committed
from tests.engines.simulated import simulated_server
from tests.runs import metrics, reached, started, wait_until

pytestmark = pytest.mark.parallel

SIZES = ("sft.steps=1", "rl.steps=4000", "evaluate.samples_per_prompt=0", "rollout.engine=vllm", "checkpoint.every=0")


@pytest.mark.parametrize("mode", ["sync", "one_step_off"])
def test_it_saves(mode: str, tmp_path: Path) -> None:
    """Two ranks, one of which alone talks to the server. Where it did not heed the signal, its grace would end it."""
    folder = tmp_path / "run"
    keys = [f"output_dir={folder}", *SIZES, f"rl.asynchrony.mode={mode}", "checkpoint.stop_grace_s=60"]
    with ExitStack() as stack:
        with simulated_server(token_ms=10) as url:
            process = stack.enter_context(started(*keys, "parallel.world_size=2", f"engine.urls=[{url}]"))
            wait_until(lambda: reached(folder, "rl", 3), process)
        lines: list[str] = []
        assert process.stdout is not None
        while not lines or "is started again" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "the run was saved and the same command continues it" in output
    assert committed(folder / "checkpoints")[-1] == f"1-rl-{metrics(folder)[-1]['step']:08d}", output
