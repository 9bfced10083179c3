"""`megarl convert` from a folder in Hugging Face layout, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from megarl.checkpoint.state import RunState
from megarl.checkpoint.store import CheckpointStore
from megarl.cli import main
from megarl.loop.folder import CHECKPOINTS, RUN_FILE
from megarl.megatron.hf_folder import INDEX, SINGLE, saved_weights
from tests.faults.planted import with_largest_file
from tests.forked_runs import megarl
from tests.runs import REPOSITORY

BASE = REPOSITORY / "tests/data/base"


def test_a_model_is_sharded_anew_and_joined_again(tmp_path: Path) -> None:
    shards, joined = tmp_path / "shards", tmp_path / "joined"
    assert main(["convert", str(BASE), str(shards), "--shard-gb", "1e-4"]) == 0
    assert main(["convert", str(shards), str(joined)]) == 0
    index = json.loads((shards / INDEX).read_text())
    read = {folder: saved_weights(folder) for folder in (BASE, shards, joined)}
    sizes = {name: read[BASE](name).nbytes for name in index["weight_map"]}
    assert index["metadata"] == {"total_size": sum(sizes.values())}
    count = len(set(index["weight_map"].values()))
    assert count > 2 and set(index["weight_map"].values()) == {
        f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)
    }
    for name in sizes:
        assert torch.equal(read[shards](name), read[BASE](name)) and torch.equal(read[joined](name), read[BASE](name))
    assert sorted(path.name for path in joined.iterdir()) == ["config.json", SINGLE]
    assert (joined / "config.json").read_bytes() == (BASE / "config.json").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["joined", "shards"]


def no_model(folder: Path) -> list[str]:
    return [str(folder), str(folder / "new")]


def target_in_use(folder: Path) -> list[str]:
    (folder / "used").mkdir()
    (folder / "used" / "file").touch()
    return [str(BASE), str(folder / "used")]


def other_architecture(folder: Path) -> list[str]:
    (folder / "config.json").write_text('{"model_type": "mistral"}')
    return no_model(folder)


def config_of_more_layers(folder: Path) -> list[str]:
    held = json.loads((BASE / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(held | {"num_hidden_layers": 5, "layer_types": None}))
    (folder / SINGLE).symlink_to(BASE / SINGLE)
    return no_model(folder)


def run_without_checkpoint(folder: Path) -> list[str]:
    (folder / "run.json").write_text("{}")
    return no_model(folder)


def damaged_checkpoint(folder: Path) -> list[str]:
    checkpoint = folder / CHECKPOINTS / "1-rl-00000001"
    store = CheckpointStore(folder / CHECKPOINTS, keep=1)
    (store.begin() / "file").write_text("weights")
    store.commit(RunState(phase="rl", step=1), {})
    (checkpoint / "file").write_text("wreckage")
    (folder / RUN_FILE).write_text("{}")
    return [str(checkpoint), str(folder / "new")]


def run_file_without_recipe(folder: Path) -> list[str]:
    (CheckpointStore(folder / CHECKPOINTS, keep=1).begin() / "file").write_text("weights")
    CheckpointStore(folder / CHECKPOINTS, keep=1).commit(RunState(phase="rl", step=1), {})
    (folder / RUN_FILE).write_text('{"recipe": []}')
    return no_model(folder)


def run_file_of_other_types(folder: Path) -> list[str]:
    run_file_without_recipe(folder)
    (folder / RUN_FILE).write_text('{"recipe": {"model": {"hidden_size": "wide"}}}')
    return no_model(folder)


def run_file_cut_short(folder: Path) -> list[str]:
    run_file_without_recipe(folder)
    (folder / RUN_FILE).write_text('{"recipe": {')
    return no_model(folder)


def below_a_file(folder: Path) -> list[str]:
    (folder / "file").touch()
    return [str(BASE), str(folder / "file" / "new")]


def link_to_nothing(folder: Path) -> list[str]:
    (folder / "link").symlink_to(folder / "nothing")
    return [str(BASE), str(folder / "link")]


def where_nobody_may_write(folder: Path) -> list[str]:
    return [str(BASE), "/proc/new"]


def weights_of_no_rows(folder: Path) -> list[str]:
    held = json.loads((BASE / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(held | {"vocab_size": -1}))
    (folder / SINGLE).symlink_to(BASE / SINGLE)
    return no_model(folder)


def no_size(folder: Path) -> list[str]:
    return [str(BASE), str(folder / "new"), "--shard-gb", "0"]


REFUSED: dict[Callable[[Path], list[str]], str] = {
    no_model: "is no run, no run's checkpoint and no Hugging Face folder; give one.",
    target_in_use: "is there already; name a new folder.",
    other_architecture: "holds a model of model_type=mistral; give one of llama, qwen2, qwen3, qwen3_moe.",
    config_of_more_layers: "holds no tensor model.layers.4.input_layernorm.weight; give a whole model.",
    run_without_checkpoint: "holds no checkpoint; train it further first.",
    damaged_checkpoint: "is damaged (file is not what was written); give another checkpoint.",
    run_file_without_recipe: "restore it from a copy.",
    run_file_cut_short: "restore it from a copy.",
    run_file_of_other_types: "write it like 3); use that one.",
    below_a_file: "which is no folder; name another folder.",
    link_to_nothing: "; name another folder.",
    where_nobody_may_write: "(No such file or directory); name another folder.",
    weights_of_no_rows: "vocab_size=-1, which is no number above 0; give another SOURCE.",
    no_size: "--shard-gb=0 is no number above 0; give a size in GB, such as 5.",
}


@pytest.mark.parametrize("arrange", REFUSED, ids=lambda arrange: arrange.__name__)
def test_what_is_refused(
    arrange: Callable[[Path], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", *arrange(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.rstrip().endswith(REFUSED[arrange]), error
    assert not (tmp_path / "new").exists()


def test_the_working_folder_is_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has a name only once it is spelt out."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["convert", str(BASE), "."]) == 0
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["config.json", SINGLE]


@pytest.mark.parametrize("shard_gb", ["5", "1e-4"])
def test_a_disk_without_room_is_told_in_a_sentence(tmp_path: Path, shard_gb: str) -> None:
    """A limit on the size of files stands in for it: the system fails the write with another number alone."""
    words = ("convert", str(BASE), str(tmp_path / "new"), "--shard-gb", shard_gb)
    ended = megarl(*words, start=with_largest_file, more=(50_000,))
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1, ended.stderr
    assert "could not be written" in ended.stderr and "make room or name another folder." in ended.stderr
    assert not (tmp_path / "new").exists()
