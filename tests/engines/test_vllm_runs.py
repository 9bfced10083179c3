"""Whole runs of the demo with a real vLLM server, unbroken and with the server killed."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from megarl.observe.metrics import reproducible

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.engine_faults,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed here; make test-engine-faults installs it",
    ),
]
ROOT = Path(__file__).resolve().parents[2]
KEYS = (
    *("sft.steps=40", "rl.steps=5", "rl.prompts_per_step=8", "rl.samples_per_prompt=8", "rl.micro_batch_size=64"),
    *("evaluate.samples_per_prompt=0", "rollout.engine=vllm", "sync.verify=always", "engine.health_timeout_s=5"),
)
LIMIT_S = 300


def start(folder: Path, *overrides: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "megarl", "train", str(ROOT / "recipes/demo/grpo_arithmetic.yaml")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, f"output_dir={folder}", *KEYS, *overrides], env=environment, stdout=log, stderr=log
        )


def servers(folder: Path) -> list[int]:
    """Ids of the processes that serve this run; their command names its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                # it has ended since
                continue
            if f"{folder}/engine/".encode() in command and b"vllm" in command:
                found.append(int(entry.name))
    return found


def steps(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["phase"] == "rl"]


def finish(run: subprocess.Popen[bytes], folder: Path) -> str:
    """Waits for the run, ends it where it does not, and gives what it printed."""
    try:
        code = run.wait(LIMIT_S)
    finally:
        run.kill()
        run.wait()
    log = (folder.parent / f"{folder.name}.log").read_text()
    assert code == 0, log[-3000:]
    return log


def wait_for(happened: Callable[[], bool], run: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not happened():
        assert run.poll() is None and time.monotonic() < deadline, "the run ended, or hangs, before that"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm") / "unbroken"
    finish(start(folder), folder)
    return folder


def test_log_probs_follow_the_weights(unbroken: Path) -> None:
    """The engine's log-probs are the trainer's in fp32, before the first update and after each."""
    lines = steps(unbroken)
    assert len(lines) == 5
    # the policy moves, so an engine with the weights of a step before would show
    assert lines[-1]["kl/reference_k3"] > 1e-3
    for line in lines:
        # two forward passes of 4 layers in fp32; logits of about 10 have units in the last place of 1e-6
        assert line["drift/abs_max"] < 1e-4


def test_nothing_of_a_server_is_left(unbroken: Path) -> None:
    assert servers(unbroken) == []
    files = [path for path in unbroken.rglob("*") if path.suffix in (".log", ".json", ".yaml")]
    written = "".join(path.read_text(errors="replace") for path in files)
    assert "MEGARL_SERVER_TOKEN" not in written and "Bearer" not in written


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_server_that_is_lost_costs_no_sample(unbroken: Path, tmp_path: Path, sign: signal.Signals) -> None:
    """Killed or stopped after a step, it is started again, and the run's metrics are those of the unbroken one."""
    folder = tmp_path / "broken"
    run = start(folder)
    wait_for(lambda: len(steps(folder)) >= 2, run)
    for server in servers(folder):
        os.kill(server, sign)
    log = finish(run, folder)
    assert "is lost" in log and "is started again" in log
    assert [reproducible(line) for line in steps(folder)] == [reproducible(line) for line in steps(unbroken)]
    assert sum(line["engine/restarts"] for line in steps(folder)) == 1
    assert {line["engine/restarts"] for line in steps(unbroken)} == {0}
    assert len({line["sync/bytes"] for line in steps(unbroken)[1:]}) == 1
    assert servers(folder) == []


def test_a_trainer_that_is_killed_leaves_no_server(unbroken: Path, tmp_path: Path) -> None:
    """Kill -9 gives it no time to end anything; the same command goes on with the unbroken run's metrics."""
    folder = tmp_path / "orphans"
    run = start(folder, "checkpoint.every=1")
    wait_for(lambda: len(steps(folder)) >= 2, run)
    family = psutil.Process(run.pid).children(recursive=True)
    # the server's front and its core, at the least
    assert len(family) >= 2 and servers(folder)
    run.kill()
    run.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    finish(start(folder, "checkpoint.every=1"), folder)
    assert [reproducible(line) for line in steps(folder)] == [reproducible(line) for line in steps(unbroken)]


def test_a_server_that_does_not_come_back_ends_the_run(tmp_path: Path) -> None:
    """With no restart left the run says so, and its newest checkpoint continues it."""
    folder = tmp_path / "ended"
    run = start(folder, "engine.restarts=0")
    wait_for(lambda: len(steps(folder)) >= 1, run)
    for server in servers(folder):
        os.kill(server, signal.SIGKILL)
    assert run.wait(LIMIT_S) == 1
    log = (tmp_path / "ended.log").read_text()
    assert "engine.restarts are used up" in log
    done = len(steps(folder))
    finish(start(folder, "engine.restarts=0"), folder)
    assert [line["step"] for line in steps(folder)] == [1, 2, 3, 4, 5] and done < 5
