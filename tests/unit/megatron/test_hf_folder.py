"""Folders of weights in Hugging Face layout: whole ones are read, damaged ones refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from megarl.config.errors import RecipeError
from megarl.megatron.hf_folder import INDEX, SINGLE, check_saved_weights, saved_weights
from tests.unit.megatron.hf import tensor_names
from tests.unit.megatron.tiny import VOCAB, noisy_weights, tiny_recipe

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TIED = tiny_recipe(family="llama").model
UNTIED = tiny_recipe(family="llama", tie_embeddings=False).model


def tensors(tied: bool = True) -> dict[str, torch.Tensor]:
    model = TIED if tied else UNTIED
    return {name: noisy_weights(model)(name) for name in tensor_names(model)}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """An untied model in two shards; the second holds its head alone."""
    held = tensors(tied=False)
    save_file({HEAD: held.pop(HEAD)}, tmp_path / SECOND)
    save_file(held, tmp_path / FIRST)
    write_index(tmp_path, dict.fromkeys(held, FIRST) | {HEAD: SECOND})
    return tmp_path


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_both_layouts_are_read(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    single, wanted = tmp_path_factory.mktemp("single"), tensors(tied=False)
    save_file(wanted, single / SINGLE)
    # what no layout names is left alone
    save_file({"other": torch.zeros(1)}, sharded / "consolidated.00.safetensors")
    for folder in (sharded, single):
        check_saved_weights(folder, UNTIED, VOCAB)
        read = saved_weights(folder)
        assert all(torch.equal(read(name), tensor) for name, tensor in wanted.items())
        with pytest.raises(KeyError):
            read("other")


def refused(folder: Path, words: str, tied: bool = False) -> None:
    with pytest.raises(RecipeError) as caught:
        check_saved_weights(folder, TIED if tied else UNTIED, VOCAB)
    message = str(caught.value)
    assert message.startswith(f"model.init_from={json.dumps(str(folder))[:70]}") and words in message, message
    assert "\n" not in message and message.count(". ") == 0, message


def cut_short(folder: Path) -> None:
    data = (folder / FIRST).read_bytes()
    (folder / FIRST).write_bytes(data[:-8])


def empty_shard(folder: Path) -> None:
    (folder / SECOND).write_bytes(b"")


def missing_shard(folder: Path) -> None:
    (folder / SECOND).unlink()


def tensor_in_another_shard(folder: Path) -> None:
    write_index(folder, dict.fromkeys(tensors(tied=False), FIRST))


def no_json(folder: Path) -> None:
    (folder / INDEX).write_text("{")


def no_weight_map(folder: Path) -> None:
    (folder / INDEX).write_text("{}")


def weight_map_of_numbers(folder: Path) -> None:
    write_index(folder, {HEAD: 1})


def shard_outside(folder: Path) -> None:
    write_index(folder, {HEAD: "../elsewhere.safetensors"})


def both_layouts(folder: Path) -> None:
    save_file(tensors(), folder / SINGLE)


def no_index(folder: Path) -> None:
    (folder / INDEX).unlink()


def missing_tensor(folder: Path) -> None:
    held = load_file(folder / FIRST)
    del held["model.norm.weight"]
    save_file(held, folder / FIRST)
    write_index(folder, dict.fromkeys(held, FIRST) | {HEAD: SECOND})


def another_shape(folder: Path) -> None:
    save_file({HEAD: torch.zeros(VOCAB, 3)}, folder / SECOND)


def too_few_rows(folder: Path) -> None:
    save_file({HEAD: torch.zeros(VOCAB - 1, 24)}, folder / SECOND)


def more_layers(folder: Path) -> None:
    """As a config.json of fewer layers would have it."""
    more(folder, "model.layers.2.input_layernorm.weight")


def biases(folder: Path) -> None:
    more(folder, "model.layers.0.self_attn.q_proj.bias")


def more(folder: Path, name: str) -> None:
    held = load_file(folder / FIRST) | {name: torch.zeros(24)}
    save_file(held, folder / FIRST)
    write_index(folder, dict.fromkeys(held, FIRST) | {HEAD: SECOND})


def tensor_in_both_shards(folder: Path) -> None:
    save_file(load_file(folder / SECOND) | {"model.norm.weight": torch.ones(24)}, folder / SECOND)


def name_twice(folder: Path) -> None:
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace(f'"{HEAD}"', f'"{HEAD}": "{FIRST}", "{HEAD}"'))


def eight_bits(folder: Path) -> None:
    save_file({HEAD: torch.zeros(VOCAB, 24, dtype=torch.int8)}, folder / SECOND)


def float8(folder: Path) -> None:
    save_file({HEAD: torch.zeros(VOCAB, 24, dtype=torch.float8_e4m3fn)}, folder / SECOND)


def name_that_no_disk_takes(folder: Path) -> None:
    write_index(folder, {HEAD: "a" * 5000})


def folder_for_a_shard(folder: Path) -> None:
    (folder / SECOND).unlink()
    (folder / SECOND).mkdir()


DAMAGE: dict[Callable[[Path], None], str] = {
    cut_short: f"holds {FIRST}, which cannot be read",
    empty_shard: f"holds {SECOND}, which cannot be read",
    missing_shard: f'names "{SECOND}", which is not there',
    tensor_in_another_shard: f"looks for {HEAD} in {FIRST}, which lacks it",
    no_json: f"{INDEX} that cannot be read",
    no_weight_map: "without a weight_map",
    weight_map_of_numbers: "without a weight_map",
    shard_outside: 'names "../elsewhere.safetensors", which is not there',
    both_layouts: f"holds both {SINGLE} and {INDEX}",
    no_index: f"holds neither {SINGLE} nor {INDEX}",
    missing_tensor: "holds no tensor model.norm.weight; give a whole model",
    another_shape: f"holds {HEAD} as [13, 3], and the model has [13, 24]",
    more_layers: 'holds "model.layers.2.input_layernorm.weight", which its model has no place for (1 such)',
    biases: 'holds "model.layers.0.self_attn.q_proj.bias", which its model has no place for (1 such)',
    tensor_in_both_shards: f"holds {SECOND}, which has model.norm.weight, and an {INDEX} that does not look for it",
    name_twice: f"{INDEX} that cannot be read ({HEAD} is there twice)",
    eight_bits: f"holds {HEAD} in I8; give weights in one of BF16, F16, F32, F64",
    float8: f"holds {HEAD} in F8_E4M3; give weights",
    name_that_no_disk_takes: "aaa..., which is not there",
    folder_for_a_shard: f'names "{SECOND}", which is not there',
    too_few_rows: f"holds {HEAD} as [12, 24], and the model has [13, 24]",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_folder_is_refused(damage: Callable[[Path], None], sharded: Path) -> None:
    damage(sharded)
    refused(sharded, DAMAGE[damage])


def test_what_is_no_weight_is_passed_over(sharded: Path) -> None:
    """Rotary frequencies, in exports of transformers before 4.32; and shards that are links, as in the Hub's cache."""
    more(sharded, "model.layers.0.self_attn.rotary_emb.inv_freq")
    (sharded / SECOND).rename(sharded / "blob")
    (sharded / SECOND).symlink_to(sharded / "blob")
    check_saved_weights(sharded, UNTIED, VOCAB)


def test_a_missing_head_is_told_from_a_tied_one(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / SINGLE)
    check_saved_weights(tmp_path, TIED, VOCAB)
    refused(
        tmp_path, f"holds no tensor {HEAD}, and its model is untied; give a whole model, or set tie_word_embeddings"
    )


def test_a_tied_model_may_hold_its_head_twice_but_not_two(tmp_path: Path) -> None:
    held = tensors()
    save_file(held | {HEAD: held[EMBEDDING].clone()}, tmp_path / SINGLE)
    check_saved_weights(tmp_path, TIED, VOCAB)
    other = held[EMBEDDING].clone()
    other[-1, -1] += 1e-3
    save_file(held | {HEAD: other}, tmp_path / SINGLE)
    refused(tmp_path, f"holds an {HEAD} that is not {EMBEDDING}, and its model is tied", tied=True)


def test_rows_beyond_the_vocabulary_may_be_there(tmp_path: Path) -> None:
    held = tensors()
    held[EMBEDDING] = torch.cat([held[EMBEDDING], torch.zeros(3, 24)])
    save_file(held, tmp_path / SINGLE)
    check_saved_weights(tmp_path, TIED, VOCAB)
    with pytest.raises(RecipeError, match=r"^SOURCE=.* holds model\.embed_tokens\.weight as \[16, 24\]"):
        check_saved_weights(tmp_path, TIED, VOCAB, "SOURCE", more_rows=False)
