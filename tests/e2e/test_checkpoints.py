"""What a run's checkpoints hold, which of them stay, and that saving in the background changes none of it."""

import json
import re
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from megarl.checkpoint.store import MANIFEST, CheckpointStore, damage_of
from megarl.observe.metrics import reproducible
from tests.faults.planted import copying_late
from tests.forked_runs import train
from tests.runs import metrics

pytestmark = pytest.mark.parallel

SHARED = (
    "sft.steps=2",
    "rl.steps=4",
    "checkpoint.every=1",
    "checkpoint.hf=true",
    "parallel.world_size=2",
    "parallel.distributed_optimizer=true",
    "evaluate.samples_per_prompt=0",
    # two models, one of which is given its weights while the first save of RL is under way
    "rl.objective.name=ppo",
    "rl.advantage=gae",
)


SAVE_ID = rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
WAITS, LATER = "waits", "later"
"""Of one length."""


def manifest(checkpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkpoint / MANIFEST).read_text())
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run, saved while it waits, and saved in the background with fewer checkpoints kept.

    In the background each copy begins late: what does not wait for it writes other numbers.
    """
    folders = tmp_path_factory.mktemp(WAITS) / "run", tmp_path_factory.mktemp(LATER) / "run"
    kept = ["checkpoint.background=true", "checkpoint.keep=1", "checkpoint.keep_best=1", "checkpoint.keep_every=3"]
    kept += ["checkpoint.best_metric=response/tokens_mean", "checkpoint.best_mode=min"]
    finished = train(f"output_dir={folders[0]}", *SHARED, "checkpoint.keep=9")
    assert finished.returncode == 0, finished.stderr
    finished = train(f"output_dir={folders[1]}", *SHARED, *kept, start=copying_late, more=(1.0,))
    assert finished.returncode == 0, finished.stderr
    return folders


def test_the_background_changes_no_file_and_no_number(runs: tuple[Path, Path]) -> None:
    waits, background = (run / "checkpoints" for run in runs)
    assert [reproducible(line) for line in metrics(runs[0])] == [reproducible(line) for line in metrics(runs[1])]
    names = [path.name for path in sorted(background.iterdir())]
    assert names[-1] == "2-done-00000000"
    for name in names:
        assert damage_of(background / name) is None
        before, after = manifest(waits / name), manifest(background / name)
        assert before["state"] == after["state"]
        assert before["files"].keys() == after["files"].keys()
        indices = ["critic/.metadata", "policy/.metadata"]
        assert [name for name in before["files"] if before["files"][name] != after["files"][name]] == indices
        # they name the folder that they were written in, and the save by a random number
        for index in indices:
            there, here = (re.sub(SAVE_ID, b"", (folder / name / index).read_bytes()) for folder in (waits, background))
            assert there == here.replace(LATER.encode(), WAITS.encode())
    assert not (background / ".writing").exists()


def test_the_manifest_names_the_software(runs: tuple[Path, Path]) -> None:
    told = manifest(runs[0] / "checkpoints/2-done-00000000")
    assert told["libraries"] == {name: version(name) for name in ("megarl", "torch", "megatron-core", "transformers")}
    assert told["engine"] == {"name": "embedded", "releases": [version("megarl")]}


def test_the_policy_asked_for_stays(runs: tuple[Path, Path]) -> None:
    lengths = {line["step"]: line["response/tokens_mean"] for line in metrics(runs[1]) if line["phase"] == "rl"}
    best = min((step for step in lengths if step < 4), key=lambda step: (lengths[step], -step))
    kept = {f"1-rl-{step:08d}" for step in (0, 3, best)} | {"2-done-00000000"}
    assert {path.name for path in (runs[1] / "checkpoints").iterdir()} == kept


def test_a_checkpoint_has_the_policy_for_other_programs(runs: tuple[Path, Path]) -> None:
    held, final = (
        load_file(runs[0] / name / "model.safetensors") for name in ("checkpoints/2-done-00000000/hf", "model")
    )
    assert held.keys() == final.keys()
    assert all(torch.equal(held[name], final[name]) for name in held)
    before = load_file(runs[0] / "checkpoints/1-rl-00000003/hf/model.safetensors")
    assert any(not torch.equal(before[name], final[name]) for name in final)
    assert (runs[0] / "checkpoints/1-rl-00000003/hf/config.json").exists()


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, Path.unlink, flip_a_bit], ids=["truncated", "deleted", "flipped"])
def test_any_damaged_file_is_found(runs: tuple[Path, Path], tmp_path: Path, damage: Any) -> None:
    """Of every kind: tensors, moments, generators, indices, the policy for others, the manifest."""
    source = runs[0] / "checkpoints"
    for name in ("1-rl-00000002", "1-rl-00000003"):
        shutil.copytree(source / name, tmp_path / name)
    store, newest = CheckpointStore(tmp_path, keep=9), tmp_path / "1-rl-00000003"
    files = sorted(str(path.relative_to(newest)) for path in newest.rglob("*") if path.is_file())
    assert {"policy/.metadata", "policy/common.pt", "rng-00001.safetensors", "hf/config.json"} < set(files)
    for name in files:
        damage(newest / name)
        found = store.newest()
        assert found is not None and found[0].name == "1-rl-00000002", name
        shutil.copyfile(source / newest.name / name, newest / name)
    found = store.newest()
    assert found is not None and found[0] == newest


def test_a_run_goes_on_from_the_one_before(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """Its newest one damaged, it ends as if nothing had been."""
    folder = tmp_path / "run"
    shutil.copytree(runs[0], folder)
    shutil.rmtree(folder / "checkpoints/2-done-00000000")
    flip_a_bit(max((folder / "checkpoints/1-rl-00000003/policy").glob("*.distcp")))
    resumed = train(f"output_dir={folder}", *SHARED, "checkpoint.keep=9")
    assert resumed.returncode == 0, resumed.stderr
    assert "passed over checkpoint" in resumed.stderr and ".distcp is not what was written" in resumed.stderr
    assert f"resumed from {folder}/checkpoints/1-rl-00000002" in resumed.stdout
    assert [reproducible(line) for line in metrics(folder)] == [reproducible(line) for line in metrics(runs[0])]
    final = "model/model.safetensors"
    assert (folder / final).read_bytes() == (runs[0] / final).read_bytes()
