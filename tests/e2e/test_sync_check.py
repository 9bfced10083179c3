"""`megarl sync-check` on the demo's model, with the engine that needs no server."""

import subprocess
from pathlib import Path

import pytest
import torch

from tests.forked_runs import megarl
from tests.runs import RECIPE


def sync_check(folder: Path, *overrides: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    return megarl("sync-check", RECIPE, f"output_dir={folder}", f"parallel.world_size={ranks}", *overrides, ranks=ranks)


@pytest.mark.parametrize(("ranks", "layout"), [(1, []), (2, ["parallel.tensor=2"])], ids=["one", "tp2"])
def test_the_embedded_engine_is_in_step(tmp_path: Path, ranks: int, layout: list[str]) -> None:
    ran = sync_check(tmp_path / "run", *layout, ranks=ranks)
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
