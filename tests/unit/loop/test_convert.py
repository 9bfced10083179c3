"""`megarl convert` from a folder in Hugging Face layout, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from megarl.cli import main
from megarl.megatron.hf_folder import INDEX, SINGLE, saved_weights
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


def no_size(folder: Path) -> list[str]:
    return [str(BASE), str(folder / "new"), "--shard-gb", "0"]


REFUSED: dict[Callable[[Path], list[str]], str] = {
    no_model: "is no run, no run's checkpoint and no Hugging Face folder; give one.",
    target_in_use: "is there already; name a new folder.",
    other_architecture: "holds a model of model_type=mistral; give one of llama, qwen2, qwen3, qwen3_moe.",
    config_of_more_layers: "holds no tensor model.layers.4.input_layernorm.weight; give a whole model.",
    run_without_checkpoint: "holds no checkpoint; train it further first.",
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
