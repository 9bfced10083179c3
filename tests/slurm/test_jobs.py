"""Cancelling, arrays and heterogeneous jobs on a real SLURM."""

import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from megarl.submit.progress import is_done, reached, saved
from tests.runs import REPOSITORY
from tests.slurm.cluster import Cluster
from tests.slurm.submitted import Submitted
from tests.unit.submit.rendered import profile_script

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("how", ["megarl cancel", "scancel"])
def test_a_cancelled_job_saves_and_stays_away(how: str, nodes: Cluster, tmp_path: Path) -> None:
    run = Submitted(nodes, tmp_path)
    run.hold(3)
    run.submit()
    run.wait_for_step(2)
    logs = ("--logs", str(tmp_path / "logs"))
    assert run.job in run.command("jobs", *logs)
    if how == "scancel":
        nodes.run("scancel", run.job)
        run.wait_for("CANCELLED")
    else:
        assert "told to save and end" in run.command("cancel", *logs, run.job)
        run.wait_for("FAILED")
        assert "the job was cancelled" in run.command("jobs", *logs)
    assert saved(run.run) == f"1-rl-{int(reached(run.run).split()[1]):08d}", run.output()
    assert nodes.state(run.job) != "PENDING"


@pytest.mark.parametrize("path", sorted((REPOSITORY / "slurm" / "profiles").glob("*.yaml")), ids=lambda path: path.name)
def test_slurm_takes_the_scripts_of_the_profiles_that_come_with_megarl(
    path: Path, nodes: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "job.sbatch").write_text(profile_script(path))
    nodes.run("sbatch", "--test-only", str(tmp_path / "job.sbatch"))


def test_an_array_of_three_seeds(nodes: Cluster, tmp_path: Path) -> None:
    run = Submitted(nodes, tmp_path)
    run.submit("--seeds", "0-2", "rl.steps=2", f"output_dir={tmp_path}/run-${{seed}}", nodes=1)
    for task in range(3):
        run.wait_for("COMPLETED", f"{run.job}_{task}")
    runs = [tmp_path / f"run-{seed}" for seed in range(3)]
    assert all(is_done(folder) for folder in runs)
    assert len({(folder / "model" / "model.safetensors").read_bytes() for folder in runs}) == 3
    shown = run.command("jobs", "--logs", str(tmp_path / "logs"))
    assert len(shown.splitlines()) == 3 and shown.count("\tdone\t") == 3


needs_vllm = pytest.mark.skipif(
    find_spec("vllm") is None and "MEGARL_VLLM_PYTHON" not in os.environ,
    reason="vLLM is not installed here; `make test-vllm` installs it, or name an interpreter in MEGARL_VLLM_PYTHON",
)


def served() -> tuple[str, ...]:
    """The recipe's keys for servers on other nodes."""
    python = os.environ.get("MEGARL_VLLM_PYTHON", sys.executable)
    assert shutil.which(python)
    keys = ("rollout.engine=vllm", "sync.transport=broadcast", "engine.kv_cache_gib=0.1", "sync.bucket_mib=1")
    # the machine does other things too
    keys += ("engine.health_timeout_s=300", "engine.update_timeout_s=600", "sync.timeout_s=600")
    return (*keys, f"engine.python={python}", "rl.steps=2")


@needs_vllm
@pytest.mark.parametrize(("layout", "trainers"), [("hetjob", 2), ("split", 1)])
def test_vllm_on_other_nodes(layout: str, trainers: int, nodes: Cluster, tmp_path: Path) -> None:
    """The servers are a component of a heterogeneous job, or the last nodes of one allocation."""
    run = Submitted(nodes, tmp_path)
    run.submit(*served(), nodes=trainers, layout=layout, requeue={"enabled": False}, engine={"nodes": 1})
    run.wait_for("COMPLETED")
    assert is_done(run.run)
    # the trainer has the first nodes, the server one of its own
    (log,) = run.run.glob("slurm/servers/*/*/server.log")
    assert log.parent.name.startswith(f"n{trainers + 1}-")
    assert "Application startup complete" in log.read_text()


@needs_vllm
def test_a_vllm_that_dies_ends_the_job(nodes: Cluster, tmp_path: Path) -> None:
    """Its front is killed: no time-out of the run's tells of it, and the job's output has its last words."""
    run = Submitted(nodes, tmp_path)
    run.hold(2, nodes=1)
    run.submit(*served(), nodes=1, layout="hetjob", requeue={"enabled": False}, engine={"nodes": 1})
    run.wait_for_step(1)
    folder = str(run.run / "slurm" / "servers")
    of_server = [each for each in psutil.process_iter(["cmdline"]) if folder in " ".join(each.info["cmdline"] or ())]
    # what watches over it is told of the folder too, in other words
    (front,) = [each for each in of_server if "vllm.entrypoints.openai.api_server" in each.info["cmdline"][:5]]
    front.kill()
    run.wait_for("FAILED")
    (attempt,) = run.attempts()
    assert (attempt["code"], attempt["stopped"], attempt["verdict"]) == (1, "", "left"), run.output()
    # it hears of the end before the update that it was held in, or when it gives the weights after it
    assert re.match(r"failed at rl [12] with exit code 1 after its servers had ended", attempt["reason"])
    assert attempt["lost"] == "137"
    # told to stop, it saved what it had while it waited for the server
    assert attempt["saved"] > "1-rl-00000000", run.output()
    assert "the servers have ended, with exit code 137" in run.output()
    assert f"the server ended with code 137; {folder}" in run.output()
