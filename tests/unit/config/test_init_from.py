import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megarl.config.check_init import check_vocabulary, init_folder_is_this_model
from megarl.config.errors import RecipeError
from megarl.config.load import load_recipe, recipe_hash
from megarl.config.moe import MoEConfig
from megarl.config.schema import Recipe

Write = Callable[[str, str], str]
HELD: dict[str, Any] = {
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": 30,
}

SCALED = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


EXPERTS = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 16}


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "model.safetensors").touch()
    recipe = Recipe()
    recipe.model.init_from = str(tmp_path)
    return recipe


def write(recipe: Recipe, **changed: Any) -> None:
    folder = Path(str(recipe.model.init_from))
    (folder / "config.json").write_text(json.dumps({**HELD, **changed}))


def test_the_same_model_passes(recipe: Recipe) -> None:
    write(recipe)
    init_folder_is_this_model(recipe)
    write(recipe, head_dim=32)
    init_folder_is_this_model(recipe)


@pytest.mark.parametrize(
    ("hf_name", "value", "key"),
    [
        ("num_hidden_layers", 3, "model.num_layers=2"),
        ("hidden_size", 128, "model.hidden_size=64"),
        ("intermediate_size", 64, "model.ffn_hidden_size=128"),
        ("num_attention_heads", 4, "model.num_attention_heads=2"),
        ("num_key_value_heads", 2, "model.num_query_groups=1"),
        ("rms_norm_eps", 1e-5, "model.norm_eps=1e-06"),
        ("rope_theta", 1e6, "model.rope_theta=10000.0"),
        ("tie_word_embeddings", False, "model.tie_embeddings=true"),
        ("model_type", "llama", "model.family=qwen2"),
        ("rope_scaling", SCALED, "model.rope_scaling=none"),
        ("head_dim", 64, "model.head_dim=32"),
    ],
)
def test_a_difference_is_named(recipe: Recipe, hf_name: str, value: Any, key: str) -> None:
    write(recipe, **{hf_name: value})
    with pytest.raises(RecipeError) as caught:
        init_folder_is_this_model(recipe)
    assert str(caught.value).startswith(f"{key} is not what ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_experts_of_the_folder(recipe: Recipe, name: str) -> None:
    """The published name, and the one that transformers 5 writes."""
    held = {name: 4, **{key: value for key, value in EXPERTS.items() if key != "num_experts"}}
    write(recipe, **held, mlp_only_layers=[1])
    folder = str(recipe.model.init_from)
    loaded = load_recipe(_recipe_file(folder)).recipe.model.moe
    assert loaded == MoEConfig(4, 3, 16, norm_topk_prob=False, dense_layers=[1])
    recipe.model.family, recipe.model.moe = "qwen3_moe", replace(loaded, experts_per_token=2)
    with pytest.raises(RecipeError, match=r"^model\.moe\.experts_per_token=2 is not what .*num_experts_per_tok=3"):
        init_folder_is_this_model(recipe)


def _recipe_file(folder: str) -> str:
    path = Path(folder) / "recipe.yaml"
    path.write_text(f"model: {{init_from: {folder}}}\nrollout: {{max_new_tokens: 16}}\n")
    return str(path)


def test_rope_theta_of_transformers_5(recipe: Recipe) -> None:
    folder = Path(str(recipe.model.init_from))
    held = {name: value for name, value in HELD.items() if name != "rope_theta"}
    (folder / "config.json").write_text(json.dumps({**held, "rope_parameters": {"rope_theta": 5e5}}))
    with pytest.raises(RecipeError, match=r"^model\.rope_theta=10000\.0 is not what .*500000\.0"):
        init_folder_is_this_model(recipe)


def test_vocabulary_of_another_size(recipe: Recipe) -> None:
    write(recipe)
    check_vocabulary(recipe, 30)
    write(recipe, vocab_size=151936)
    check_vocabulary(recipe, 151665)
    write(recipe)
    with pytest.raises(RecipeError, match="has a vocabulary of 30, but the recipe's tokenizer one of 31"):
        check_vocabulary(recipe, 31)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type=yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_type=linear"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"model_type": "mistral"}, "model_type=mistral; give one of llama, qwen2, qwen3"),
        ({"rope_scaling": {**SCALED, "factor": None}}, "has no factor"),
        ({"hidden_size": None}, "without hidden_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3 does not divide num_attention_heads=2"),
        ({**EXPERTS, "decoder_sparse_step": 2}, "decoder_sparse_step=2"),
        ({**EXPERTS, "moe_intermediate_size": None}, "without moe_intermediate_size"),
        ({**EXPERTS, "num_experts": 4.0}, "num_experts=4.0, which is no whole number"),
    ],
)
def test_networks_that_no_family_builds(recipe: Recipe, held: dict[str, Any], words: str) -> None:
    write(recipe, **held)
    with pytest.raises(RecipeError, match=words):
        init_folder_is_this_model(recipe)


@pytest.mark.parametrize("text", ["", "[]x", "{"])
def test_config_that_is_no_json(recipe: Recipe, text: str) -> None:
    (Path(str(recipe.model.init_from)) / "config.json").write_text(text)
    with pytest.raises(RecipeError, match="cannot be read"):
        init_folder_is_this_model(recipe)


def test_folder_without_safetensors(recipe: Recipe) -> None:
    write(recipe)
    (Path(str(recipe.model.init_from)) / "model.safetensors").unlink()
    with pytest.raises(RecipeError, match=r"holds no \.safetensors file"):
        init_folder_is_this_model(recipe)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "config.json holds [], which is no mapping"),
        ('{"rope_parameters": [1]}', "rope_parameters=[1], which is no mapping"),
        ('{"rope_scaling": "yarn"}', "rope_scaling=yarn, which is no mapping"),
        ('{"head_dim": "32"}', 'head_dim="32", which is no whole number'),
        ('{"num_hidden_layers": 2.5}', "num_hidden_layers=2.5, which is no whole number"),
        ('{"rope_theta": true}', "rope_theta=true, which is no number"),
        ('{"tie_word_embeddings": 1}', "tie_word_embeddings=1, which is no true or false"),
        ('{"vocab_size": [30]}', "vocab_size=[30], which is no whole number"),
        ('{"vocab_size": -3}', "vocab_size=-3, which is no number above 0"),
        ('{"num_hidden_layers": 0}', "num_hidden_layers=0, which is no number above 0"),
        ('{"num_experts": -4}', "num_experts=-4, which is no number above 0"),
        ('{"rms_norm_eps": 0.0}', "rms_norm_eps=0.0, which is no number above 0"),
        ('{"rope_theta": NaN}', "rope_theta=NaN, which is no number above 0"),
        ('{"rope_parameters": {"rope_theta": Infinity}}', "rope_theta=Infinity, which is no number above 0"),
        ('{"layer_types": 3}', "layer_types=3, which is no list"),
        ('{"attention_bias": "false"}', 'attention_bias="false", which is no true or false'),
        ('{"mlp_only_layers": [[0]]}', "mlp_only_layers=[[0]], which holds more than whole numbers"),
        ('{"mlp_only_layers": ["a"]}', 'mlp_only_layers=["a"], which holds more than whole numbers'),
        ('{"rope_scaling": {"factor": 4.0}}', 'rope_scaling={"factor": 4.0}, which does not say how (rope_type)'),
        ('{"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}', "which differs from layer to layer"),
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", "cannot be read"),
    ],
)
def test_config_with_entries_of_another_type(recipe: Recipe, text: str, words: str) -> None:
    (Path(str(recipe.model.init_from)) / "config.json").write_text(text)
    with pytest.raises(RecipeError) as caught:
        init_folder_is_this_model(recipe)
    assert words in str(caught.value)


def test_a_mapping_on_rotary_embeddings_says_nothing_else(recipe: Recipe) -> None:
    """An entry in it that has another one's name is not that one."""
    write(recipe, rope_scaling={"rope_type": "default", "hidden_size": 128})
    init_folder_is_this_model(recipe)


def test_a_config_with_no_end_of_layers_is_refused(recipe: Recipe) -> None:
    write(recipe, num_hidden_layers=10**30)
    with pytest.raises(RecipeError, match=r"^model\.num_layers=10+ .* is above 10000; give at most 10000"):
        load_recipe(_recipe_file(str(recipe.model.init_from)))


def test_entries_that_are_null_tell_nothing(recipe: Recipe) -> None:
    write(recipe, rope_scaling=None, head_dim=None, vocab_size=None)
    init_folder_is_this_model(recipe)
    check_vocabulary(recipe, 31)


LLAMA_3_2 = {
    "model_type": "llama",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rope_theta": 500000,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "vocab_size": 128256,
}
ITS_SHAPE = {
    "family": "llama",
    "num_layers": 16,
    "hidden_size": 2048,
    "ffn_hidden_size": 8192,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": "llama3",
    "rope_scaling_factor": 32.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_original_context": 8192,
    "norm_eps": 1e-5,
    "tie_embeddings": True,
}


@pytest.fixture
def llama(write: Write) -> str:
    """Llama 3.2 1B's config.json, as transformers 4 writes it, beside weights that nothing here reads."""
    write("weights/model.safetensors", "")
    write("weights/config.json", json.dumps({**LLAMA_3_2, "rope_scaling": SCALED}))
    return write("a.yaml", "model: {init_from: weights}")


def test_the_folder_alone_is_enough(llama: str, write: Write) -> None:
    loaded = load_recipe(llama)
    assert {name: loaded.tree["model"][name] for name in ITS_SHAPE} == ITS_SHAPE
    assert isinstance(loaded.recipe.model.rope_theta, float)
    assert {loaded.sources[f"model.{name}"] for name in ITS_SHAPE} == {"weights/config.json"}
    assert loaded.sources["model.init_from"] == llama
    assert loaded.sources["model.embedding_init_std"] == "default"
    # what a resumed run must share does not depend on who gave the shape
    spelt_out = write("b.yaml", json.dumps({"model": {**ITS_SHAPE, "init_from": "weights"}}))
    assert recipe_hash(load_recipe(spelt_out).recipe) == recipe_hash(loaded.recipe)


def test_transformers_5_gives_the_same_shape(llama: str, write: Write) -> None:
    before = load_recipe(llama).recipe
    held = {name: value for name, value in LLAMA_3_2.items() if name != "rope_theta"}
    write("weights/config.json", json.dumps({**held, "rope_parameters": {"rope_theta": 5e5, **SCALED}}))
    assert load_recipe(llama).recipe == before


def test_a_key_that_contradicts_the_folder_names_both(llama: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(llama, ["model.num_layers=4"])
    assert str(caught.value) == (
        "model.num_layers=4 is not what weights holds (num_hidden_layers=16); set model.num_layers=16 or leave it out."
    )


def test_the_context_may_be_another(llama: str) -> None:
    assert load_recipe(llama, ["model.max_position_embeddings=4096"]).recipe.model.max_position_embeddings == 4096


def test_keys_may_refer_to_the_folders_shape(llama: str) -> None:
    loaded = load_recipe(llama, ["rollout.max_batch_size=${model.num_layers}"])
    assert loaded.recipe.rollout.max_batch_size == 16


def test_without_the_folder_the_shape_is_the_recipes(llama: str) -> None:
    loaded = load_recipe(llama, ["model.init_from=null"])
    assert loaded.recipe.model == Recipe().model


def test_an_untied_head_is_what_the_file_means_by_silence(llama: str, write: Write) -> None:
    held = {name: value for name, value in LLAMA_3_2.items() if name != "tie_word_embeddings"}
    write("weights/config.json", json.dumps({**held, "rope_scaling": SCALED}))
    assert not load_recipe(llama).recipe.model.tie_embeddings
