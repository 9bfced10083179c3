"""Folders that hold a model's settings and not, or not all of, its weights."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from megarl.config.errors import RecipeError
from megarl.diagnose.load import load_model

BASE = Path(__file__).resolve().parents[2] / "data" / "base"
WEIGHTS = "model.safetensors"


def no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def cut_short(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:1000])


def a_tensor_missing(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, folder / WEIGHTS)


def another_shape(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "intermediate_size": 256}))


def a_pickle_that_writes(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({"a": Planted(folder / "written")}, folder / "pytorch_model.bin")


class Planted:
    """Its pickle, loaded, makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (str(self.file), "w")


def code_of_its_own(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (folder / "config.json").write_text(json.dumps({**settings, "model_type": "own", "auto_map": own}))
    (folder / "own.py").write_text(f"open({str(folder / 'written')!r}, 'w')")


@pytest.mark.parametrize(
    "damage", [no_weights, cut_short, a_tensor_missing, another_shape, a_pickle_that_writes, code_of_its_own]
)
def test_what_is_no_whole_model_is_refused_by_its_option(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BASE, folder)
    assert load_model(folder, "fp32", "--older") is not None
    damage(folder)
    with pytest.raises(RecipeError, match=r"^--older=\S+model\S* ") as refused:
        load_model(folder, "fp32", "--older")
    assert "\n" not in str(refused.value)
    assert not (folder / "written").exists()


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    shutil.copytree(BASE, tmp_path / "model")
    a_tensor_missing(tmp_path / "model")
    with pytest.raises(RecipeError, match=r"holds no tensor model\.layers\.1\.mlp\.up_proj"):
        load_model(tmp_path / "model", "fp32", "--model")
