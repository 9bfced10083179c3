"""Composition, overrides, interpolation and provenance."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from megarl.config.errors import RecipeError
from megarl.config.load import load_recipe
from megarl.config.provenance import leaves
from megarl.config.schema import Recipe

Write = Callable[[str, str], str]


def test_empty_file_is_the_default_recipe(write: Write) -> None:
    loaded = load_recipe(write("a.yaml", ""))
    expected = Recipe()
    expected.output_dir = "runs/run"
    assert loaded.recipe == expected
    assert loaded.tree == asdict(expected)
    assert set(loaded.sources.values()) == {"default"}


def test_the_demo_recipe_loads(demo_recipe: str) -> None:
    loaded = load_recipe(demo_recipe)
    assert loaded.recipe.output_dir == "runs/demo-seed0"
    assert loaded.recipe.sft.optimizer.lr == 4e-3
    assert loaded.recipe.data.options["operand"] == [1, 9]


def test_defaults_merge_in_order_before_the_file(write: Write) -> None:
    write("base/one.yaml", "name: one\nrl: {steps: 1, prompts_per_step: 8}\nevaluate: {ks: [1, 2, 4]}")
    write("base/two.yaml", "name: two\nrl: {steps: 2}\ndata: {options: {a: 1, b: {c: 2}}}")
    path = write(
        "top.yaml", "defaults: [base/one.yaml, base/two.yaml]\nevaluate: {ks: [8]}\ndata: {options: {b: {d: 3}}}"
    )
    recipe = load_recipe(path).recipe
    assert (recipe.name, recipe.rl.steps, recipe.rl.prompts_per_step) == ("two", 2, 8)
    assert recipe.evaluate.ks == [8]
    assert recipe.data.options == {"a": 1, "b": {"c": 2, "d": 3}}


def test_nested_defaults_are_relative_to_the_file_that_names_them(write: Write) -> None:
    write("shared/deep/root.yaml", "seed: 7\nname: root")
    write("shared/middle.yaml", "defaults: [deep/root.yaml]\nname: middle")
    path = write("recipes/top.yaml", "defaults: [../shared/middle.yaml]")
    loaded = load_recipe(path)
    assert (loaded.recipe.seed, loaded.recipe.name) == (7, "middle")
    assert loaded.sources["seed"] == "shared/deep/root.yaml"
    assert loaded.sources["name"] == "shared/middle.yaml"


def test_one_base_may_be_reached_twice(write: Write) -> None:
    write("root.yaml", "seed: 1")
    write("left.yaml", "defaults: [root.yaml]\nseed: 2")
    write("right.yaml", "defaults: [root.yaml]")
    # The second visit to the root comes after the left file, so the root wins.
    assert load_recipe(write("top.yaml", "defaults: [left.yaml, right.yaml]")).recipe.seed == 1


def test_overrides_win_and_have_yaml_types(write: Write) -> None:
    path = write("a.yaml", "rl: {steps: 3}")
    overrides = [
        "rl.steps=4",
        "rl.steps=5",
        "rl.objective.clip_high=.3",
        "rl.optimizer.lr=1e-4",
        "rl.optimizer.clip_grad=2",
        "evaluate.ks=[1,2]",
        "model.tie_embeddings=false",
        "observe.wandb_project=null",
        "data.options={terms: 4}",
        "data.options.first=[10, 29]",
        "data.prompt_template='Q={prompt}'",
    ]
    recipe = load_recipe(path, overrides).recipe
    assert recipe.rl.steps == 5
    assert recipe.rl.objective.clip_high == 0.3
    assert recipe.rl.optimizer.lr == 1e-4
    assert isinstance(recipe.rl.optimizer.clip_grad, float)
    assert recipe.evaluate.ks == [1, 2]
    assert recipe.model.tie_embeddings is False
    assert recipe.observe.wandb_project is None
    assert recipe.data.options == {"terms": 4, "first": [10, 29]}
    assert recipe.data.prompt_template == "Q={prompt}"


def test_every_leaf_has_the_source_of_the_last_that_set_it(write: Write) -> None:
    write("base.yaml", "seed: 1\nname: base\nrl: {steps: 1}\ndata: {options: {a: 1, b: 2}}")
    path = write("top.yaml", "defaults: [base.yaml]\nname: top\ndata: {options: {b: 3}}")
    loaded = load_recipe(path, ["rl.steps=2", "data.options.c=4"])
    assert set(loaded.sources) == {".".join(leaf) for leaf, _ in leaves(loaded.tree)}
    wanted = {
        "seed": "base.yaml",
        "name": "top.yaml",
        "rl.steps": "command line",
        "rl.prompts_per_step": "default",
        "output_dir": "default",
        "data.options.a": "base.yaml",
        "data.options.b": "top.yaml",
        "data.options.c": "command line",
    }
    assert {key: loaded.sources[key] for key in wanted} == wanted


def test_interpolation_resolves_keys_sections_and_the_environment(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGARL_TEST_FOLDER", "/data/runs")
    text = """
name: ${seed}
output_dir: ${oc.env:MEGARL_TEST_FOLDER}/${name}
rl: {optimizer: {lr: 0.5}}
sft: {optimizer: "${rl.optimizer}"}
evaluate: {ks: "${data.options.ks}"}
data: {options: {ks: [1, 2], copy: "${model}", literal: "\\\\${x}"}}
"""
    loaded = load_recipe(write("a.yaml", text), ["seed=3"])
    assert loaded.recipe.output_dir == "/data/runs/3"
    assert loaded.recipe.sft.optimizer.lr == 0.5
    assert loaded.recipe.evaluate.ks == [1, 2]
    assert loaded.recipe.data.options["copy"] == asdict(loaded.recipe.model)
    assert loaded.recipe.data.options["literal"] == "${x}"
    assert loaded.sources["sft.optimizer.lr"] == "a.yaml"


def test_the_loaded_tree_is_not_shared_with_the_recipe(write: Write) -> None:
    loaded = load_recipe(write("a.yaml", "data: {options: {a: [1]}}"))
    loaded.recipe.data.options["a"].append(2)
    assert loaded.tree["data"]["options"] == {"a": [1]}


@pytest.mark.parametrize(("before", "after"), [([1, 2], {"b": 1}), ({"b": 1}, [1, 2]), ({"b": {"c": 1}}, {"b": [1]})])
def test_a_list_and_a_mapping_take_each_others_place(write: Write, before: Any, after: Any) -> None:
    path = write("a.yaml", f"data: {{options: {{a: {before}, kept: 1}}}}")
    loaded = load_recipe(path, [f"data.options.a={after}"])
    assert loaded.recipe.data.options == {"a": after, "kept": 1}


def test_a_mapping_over_an_interpolated_list_is_refused(write: Write) -> None:
    path = write("a.yaml", "data: {options: {a: '${data.options.b}', b: [1]}}")
    with pytest.raises(RecipeError, match=r"data\.options\.a cannot be resolved: .*; mend the \$"):
        load_recipe(path, ["data.options.a={c: 1}"])


def test_null_empties_a_free_mapping(write: Write) -> None:
    write("base.yaml", "data: {options: {terms: 4, hint: 0.1}}")
    path = write("a.yaml", "defaults: [base.yaml]\ndata: {options: null}")
    assert load_recipe(path).recipe.data.options == {}
    loaded = load_recipe(write("a.yaml", "defaults: [base.yaml]"), ["data.options=null", "data.options.terms=3"])
    assert loaded.recipe.data.options == {"terms": 3}
    assert loaded.sources["data.options.terms"] == "command line"
