"""`megarl train` joins a world that torchrun or srun made, and starts one of its own where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from megarl.observe.metrics import reproducible
from tests import forked_runs
from tests.runs import REPOSITORY, command, environment, metrics, train

pytestmark = pytest.mark.parallel

SHORT = ("rl.steps=2", "parallel.world_size=2")


@pytest.fixture(scope="module")
def own_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose processes megarl started itself."""
    folder = tmp_path_factory.mktemp("own") / "run"
    finished = train(f"output_dir={folder}", *SHORT)
    assert finished.returncode == 0, finished.stderr
    return folder


def same_metrics(one: Path, other: Path) -> bool:
    """Whether two runs wrote the same numbers."""
    return [reproducible(line) for line in metrics(one)] == [reproducible(line) for line in metrics(other)]


def test_torchrun(tmp_path: Path, own_world: Path) -> None:
    """Under torchrun the run is the same, bit for bit."""
    folder = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    finished = subprocess.run(
        [*torchrun, *command(f"output_dir={folder}", *SHORT)[1:]],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr
    assert same_metrics(folder, own_world)


def test_variables_as_srun_sets_them(tmp_path: Path, own_world: Path) -> None:
    """Two processes with SLURM's variables and the MASTER_ADDR and MASTER_PORT that a batch script exports."""
    from tests.ports import free_port

    folder = tmp_path / "run"
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            command(f"output_dir={folder}", *SHORT),
            cwd=REPOSITORY,
            env=environment(
                SLURM_PROCID=str(rank),
                SLURM_STEP_NUM_TASKS="2",
                SLURM_LOCALID=str(rank),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                GLOO_SOCKET_IFNAME="lo",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert same_metrics(folder, own_world)


@pytest.mark.parametrize("objective", ["clip_cov", "kl_cov"])
def test_the_selection_knows_no_ranks(tmp_path: Path, objective: str) -> None:
    """One rank in one micro-batch and two in several select the same tokens: norms differ by their rounding alone."""
    settings = ["rl.steps=1", "rl.updates_per_step=2", "rl.prompts_per_step=16", "evaluate.samples_per_prompt=0"]
    settings += [f"rl.objective.name={objective}", "rl.objective.cov_share=0.3"]
    if objective == "clip_cov":
        settings.append("rl.objective.cov_low=0.001")
    else:
        settings += ["rl.objective.clip_low=null", "rl.objective.clip_high=null"]
    lines = []
    for world_size, micro_batch in ((1, 32), (2, 4)):
        folder = tmp_path / str(world_size)
        layout = [f"parallel.world_size={world_size}", f"rl.micro_batch_size={micro_batch}"]
        finished = forked_runs.train(f"output_dir={folder}", *settings, *layout)
        assert finished.returncode == 0, finished.stderr
        lines.append(next(line for line in metrics(folder) if line["phase"] == "rl"))
    names = (
        "policy/selected_share",
        "policy/grad_norm",
        "covariance/mean",
        "covariance/max",
        "covariance/selected_mean",
    )
    assert lines[0]["policy/selected_share"] > 0 and lines[0]["policy/grad_norm"] > 0
    assert [lines[1][name] for name in names] == pytest.approx([lines[0][name] for name in names], rel=1e-4)


def test_a_world_of_another_size_is_refused(tmp_path: Path) -> None:
    """The recipe and the launcher must agree on the number of processes."""
    finished = subprocess.run(
        command(f"output_dir={tmp_path / 'run'}", "parallel.world_size=1"),
        cwd=REPOSITORY,
        env=environment(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode == 2
    assert finished.stderr.startswith(
        "megarl: error: parallel.world_size=1, but this process was started in a world of 2"
    )
    assert not (tmp_path / "run").exists()
