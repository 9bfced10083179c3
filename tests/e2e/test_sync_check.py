"""`megarl sync-check` on the demo's model, with the engine that needs no server."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = "recipes/demo/grpo_arithmetic.yaml"


def sync_check(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "megarl", "sync-check", DEMO, f"output_dir={folder}", *overrides],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("layout", [[], ["parallel.world_size=2", "parallel.tensor=2"]], ids=["one", "tp2"])
def test_the_embedded_engine_is_in_step(tmp_path: Path, layout: list[str]) -> None:
    ran = sync_check(tmp_path / "run", *layout)
    assert ran.returncode == 0, ran.stderr
    assert "in process" in ran.stdout and "In step." in ran.stdout
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_another_run_is_of_no_concern(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    ran = sync_check(tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, whose memory can be shared")
def test_gpu_memory_on_a_cpu_is_a_mistake_of_the_recipe(tmp_path: Path) -> None:
    ran = sync_check(tmp_path / "run", "rollout.engine=vllm", "sync.transport=cuda_ipc")
    assert ran.returncode == 2
    assert ran.stderr.startswith("megarl: error: sync.transport=cuda_ipc is memory of a GPU")
