"""Whole runs of the demo with a real vLLM server, unbroken and with the server killed."""

import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from megarl.observe.metrics import reproducible
from tests.forked_runs import ForkedRun, ended, forked
from tests.runs import RECIPE, metrics, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.engine_faults]

KEYS = (
    *("model.init_from=tests/data/base", "sft.steps=0", "evaluate.samples_per_prompt=0", "rollout.engine=vllm"),
    *("rl.steps=5", "rl.prompts_per_step=8", "rl.samples_per_prompt=8", "rl.micro_batch_size=64"),
    # a server looks at the whole machine when it is first asked for its settings
    *("sync.verify=always", "engine.health_timeout_s=20"),
)
LIMIT_S = 300


def started(folder: Path, *overrides: str) -> AbstractContextManager[ForkedRun]:
    return forked([RECIPE, f"output_dir={folder}", *KEYS, *overrides])


def finish(run: ForkedRun) -> str:
    """Waits for the run's good end, and gives what it printed."""
    done = ended(run, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def steps(folder: Path) -> list[dict[str, Any]]:
    return [line for line in metrics(folder) if line["phase"] == "rl"]


def reproduced(folder: Path) -> list[dict[str, Any]]:
    return [reproducible(line) for line in steps(folder)]


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


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm") / "unbroken"
    with started(folder) as run:
        finish(run)
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


def test_servers_that_are_lost_cost_no_sample(unbroken: Path, tmp_path: Path) -> None:
    """One killed after a step, the next one stopped after another: the run's metrics are those of the unbroken one."""
    folder = tmp_path / "broken"
    with started(folder) as run:
        for step, sign in ((1, signal.SIGKILL), (3, signal.SIGSTOP)):
            wait_until(lambda step=step: len(steps(folder)) >= step, run, LIMIT_S)
            for server in servers(folder):
                os.kill(server, sign)
        log = finish(run)
    assert "is lost" in log and "is started again" in log
    assert reproduced(folder) == reproduced(unbroken)
    assert sum(line["engine/restarts"] for line in steps(folder)) == 2
    assert {line["engine/restarts"] for line in steps(unbroken)} == {0}
    assert len({line["sync/bytes"] for line in steps(unbroken)[1:]}) == 1
    assert servers(folder) == []


def test_a_run_that_ends_with_its_server_and_a_server_that_ends_with_its_trainer(
    unbroken: Path, tmp_path: Path
) -> None:
    """With no restart left the run says so; kill -9 gives a trainer no time to end anything, and no server stays.

    Either time the same command goes on from the newest checkpoint, with the unbroken run's metrics.
    """
    folder, keys = tmp_path / "ended", ("checkpoint.every=1", "engine.restarts=0")
    with started(folder, *keys) as run:
        wait_until(lambda: len(steps(folder)) >= 1, run, LIMIT_S)
        for server in servers(folder):
            os.kill(server, signal.SIGKILL)
        done = ended(run, timeout_s=LIMIT_S)
        assert done.returncode == 1 and "engine.restarts are used up" in done.stdout + done.stderr
    assert len(steps(folder)) < 4
    with started(folder, *keys) as run:
        wait_until(lambda: len(steps(folder)) >= 4, run, LIMIT_S)
        family = psutil.Process(run.ranks[0].pid).children(recursive=True)
        # the server's front and its core, at the least
        assert len(family) >= 2 and servers(folder)
        # the process alone: whatever else goes, goes by itself
        os.kill(run.ranks[0].ident, signal.SIGKILL)
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive
    with started(folder, *keys) as run:
        assert "resumed from" in finish(run)
    assert reproduced(folder) == reproduced(unbroken)
