import json
from pathlib import Path
from typing import Any

import pytest

from megarl.config.check_init import check_vocabulary, init_folder_is_this_model
from megarl.config.errors import RecipeError
from megarl.config.schema import Recipe

HELD: dict[str, Any] = {
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": 30,
}


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
        ("head_dim", 64, "model.head_dim=32"),
    ],
)
def test_a_difference_is_named(recipe: Recipe, hf_name: str, value: Any, key: str) -> None:
    write(recipe, **{hf_name: value})
    with pytest.raises(RecipeError) as caught:
        init_folder_is_this_model(recipe)
    assert str(caught.value).startswith(f"{key} is not what ")
    assert "\n" not in str(caught.value)


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
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0}}, "rope_type=llama3"),
        ({"use_sliding_window": True}, "sliding-window"),
    ],
)
def test_positions_that_the_model_does_not_know(recipe: Recipe, held: dict[str, Any], words: str) -> None:
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
        ('{"vocab_size": [30]}', "vocab_size=[30], which is no whole number"),
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", "cannot be read"),
    ],
)
def test_config_with_entries_of_another_type(recipe: Recipe, text: str, words: str) -> None:
    (Path(str(recipe.model.init_from)) / "config.json").write_text(text)
    with pytest.raises(RecipeError) as caught:
        init_folder_is_this_model(recipe)
    assert words in str(caught.value)


def test_entries_that_are_null_tell_nothing(recipe: Recipe) -> None:
    write(recipe, rope_scaling=None, head_dim=None, vocab_size=None)
    init_folder_is_this_model(recipe)
    check_vocabulary(recipe, 31)
