"""Weights through Megatron-core and back, and the same network in transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from megarl.checkpoint.hf import export_hf
from megarl.config.model import TokenizerConfig
from megarl.data.tokenizer import build_tokenizer
from megarl.megatron.hf_folder import saved_weights
from megarl.megatron.policy import FrozenModel
from megarl.megatron.weights import ReadTensor, random_weights
from megarl.megatron.world import Layout
from tests.unit.megatron.hf import hf_log_probs, hf_model, tensor_names
from tests.unit.megatron.tiny import ALPHABET, VOCAB, noisy_weights, random_batch, tiny_recipe

# 4 frequencies of a head make 5.1, 1.6, .51 and .16 turns over a context of 32: one is kept, one between, two slowed
SCALED_ROPE = {
    "rope_theta": 100.0,
    "rope_scaling": "llama3",
    "rope_scaling_factor": 5.0,
    "rope_low_freq_factor": 0.75,
    "rope_high_freq_factor": 3.0,
    "rope_original_context": 32,
}
SHAPES: dict[str, dict[str, Any]] = {
    "tied": {"tie_embeddings": True},
    "untied": {"tie_embeddings": False},
    "one group": {"num_query_groups": 1},
    "no groups": {"num_query_groups": 4},
    "rope and eps": {"rope_theta": 1234.5, "norm_eps": 1e-2},
    "llama": {"family": "llama", "tie_embeddings": False},
    "llama with scaled rope": {"family": "llama", **SCALED_ROPE},
    "qwen3": {"family": "qwen3", "head_dim": 16},
    "qwen3_moe": {"family": "qwen3_moe", "moe": {"num_experts": 4, "ffn_hidden_size": 20}},
    "qwen3_moe, a dense layer, gates as they are": {
        "family": "qwen3_moe",
        "moe": {
            "num_experts": 5,
            "experts_per_token": 1,
            "ffn_hidden_size": 12,
            "norm_topk_prob": False,
            "dense_layers": [0],
        },
    },
    "qwen3 untied": {"family": "qwen3", "tie_embeddings": False, "num_query_groups": 1},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_export_gives_back_what_was_loaded(layout: Layout, shape: dict[str, Any]) -> None:
    recipe = tiny_recipe(**shape)
    model, read = FrozenModel(recipe, layout, VOCAB), noisy_weights(recipe.model)
    model.load(read)
    exported = list(model.export())
    assert sorted(name for name, _ in exported) == sorted(tensor_names(recipe.model))
    assert all(torch.equal(tensor, read(name)) for name, tensor in exported)
    assert not any(tensor.requires_grad for _, tensor in exported)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_log_probs_are_those_of_transformers(layout: Layout, shape: dict[str, Any], temperature: float) -> None:
    recipe = tiny_recipe(temperature=temperature, **shape)
    model, read = FrozenModel(recipe, layout, VOCAB), noisy_weights(recipe.model)
    model.load(read)
    batch = random_batch(4)
    ours = model.log_probs(batch, micro_batch_size=2)
    theirs = hf_log_probs(hf_model(recipe.model, dict(model.export()).__getitem__, torch.float32), batch, temperature)
    assert ours.isnan().equal(~batch.mask_BT)
    torch.testing.assert_close(ours[batch.mask_BT], theirs.detach()[batch.mask_BT], rtol=0.0, atol=1e-5)


def test_random_weights_depend_on_seed_and_name_alone() -> None:
    model = tiny_recipe().model
    names = tensor_names(model)
    backwards, forwards = random_weights(model, VOCAB, 1), random_weights(model, VOCAB, 1)
    expected = {name: backwards(name) for name in reversed(names)}
    assert all(torch.equal(forwards(name), expected[name]) for name in names)
    other = random_weights(model, VOCAB, 2)
    query, key = "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight"
    assert not torch.equal(other(query), expected[query]) and not torch.equal(expected[query], expected[key])


def test_random_weights_have_the_stated_spread() -> None:
    model = tiny_recipe(hidden_size=400, embedding_init_std=0.02).model
    read = random_weights(model, VOCAB, 0)
    # 5200 and 32 * 400 numbers: the standard error of a standard deviation is 1 % and .6 %
    assert read("model.embed_tokens.weight").std().item() == pytest.approx(0.02, rel=0.06)
    assert read("model.layers.0.self_attn.q_proj.weight").std().item() == pytest.approx(400**-0.5, rel=0.06)
    assert read("model.layers.1.self_attn.o_proj.weight").std().item() == pytest.approx(32**-0.5 / 2, rel=0.06)
    assert torch.equal(read("model.norm.weight"), torch.ones(400))
    assert torch.equal(read("model.layers.0.self_attn.q_proj.bias"), torch.zeros(32))


@pytest.mark.parametrize("tied", [True, False])
def test_exported_folder_loads_in_transformers_and_back(layout: Layout, tied: bool, tmp_path: Path) -> None:
    recipe = tiny_recipe(tie_embeddings=tied)
    model, read = FrozenModel(recipe, layout, VOCAB), noisy_weights(recipe.model)
    model.load(read)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "stale.txt").write_text("from an older export")
    tokenizer = build_tokenizer(TokenizerConfig(alphabet=ALPHABET, words=[]))
    assert len(tokenizer) == VOCAB
    export_hf(model, folder, tokenizer)
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert "stale.txt" not in names
    assert AutoTokenizer.from_pretrained(folder)("12+3").input_ids == tokenizer("12+3").input_ids
    assert list(tmp_path.iterdir()) == [folder]

    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == (["Qwen2ForCausalLM"], "qwen2")
    assert (config["eos_token_id"], config["pad_token_id"], config["vocab_size"]) == (1, 0, VOCAB)
    network, notes = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(notes[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    batch = random_batch(4)
    theirs = hf_log_probs(network, batch).detach()
    ours = model.log_probs(batch, micro_batch_size=4)
    torch.testing.assert_close(ours[batch.mask_BT], theirs[batch.mask_BT], rtol=0.0, atol=1e-5)

    again = FrozenModel(recipe, layout, VOCAB)
    again.load(saved_weights(folder))
    assert all(torch.equal(tensor, read(name)) for name, tensor in again.export())


def resized(read: ReadTensor, name: str, rows: int) -> ReadTensor:
    """The same weights but for one tensor, which is `rows` longer (or shorter)."""

    def other(asked: str) -> torch.Tensor:
        tensor = read(asked)
        if asked != name:
            return tensor
        return torch.cat([tensor, tensor[:rows]]) if rows > 0 else tensor[:rows]

    return other


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("model.embed_tokens.weight", -1),
        ("model.layers.0.self_attn.k_proj.weight", 2),
        ("model.layers.0.self_attn.k_proj.bias", -2),
        ("model.layers.1.mlp.up_proj.weight", 2),
        ("model.layers.1.mlp.gate_proj.weight", -2),
        ("model.norm.weight", 1),
    ],
)
def test_wrong_shape_is_refused(layout: Layout, name: str, rows: int) -> None:
    recipe = tiny_recipe()
    with pytest.raises(ValueError, match=rf"{name}: the weights give"):
        FrozenModel(recipe, layout, VOCAB).load(resized(noisy_weights(recipe.model), name, rows))


def test_rows_beyond_the_vocabulary_are_left_out(layout: Layout) -> None:
    recipe, name = tiny_recipe(), "model.embed_tokens.weight"
    model, read = FrozenModel(recipe, layout, VOCAB), noisy_weights(recipe.model)
    model.load(resized(read, name, 3))
    assert torch.equal(dict(model.export())[name], read(name))


def test_a_model_in_bfloat16_is_written_in_bfloat16(layout: Layout, tmp_path: Path) -> None:
    recipe = tiny_recipe(family="qwen3")
    model, read = FrozenModel(recipe, layout, VOCAB), noisy_weights(recipe.model)
    model.models[0].bfloat16()
    model.load(read)
    export_hf(model, tmp_path / "model", build_tokenizer(TokenizerConfig(alphabet=ALPHABET, words=[])))
    assert json.loads((tmp_path / "model/config.json").read_text())["dtype"] == "bfloat16"
    written = saved_weights(tmp_path / "model")
    for name in tensor_names(recipe.model):
        assert torch.equal(written(name), read(name).bfloat16())
