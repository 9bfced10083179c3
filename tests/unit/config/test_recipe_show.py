"""The printed recipe: valid, complete, annotated, and a recipe itself."""

from collections.abc import Callable

import pytest

from megarl.config.keys import keys
from megarl.config.load import load_recipe, recipe_hash
from megarl.config.show import render

Write = Callable[[str, str], str]

# Texts that some YAML reader or OmegaConf's interpolation takes for something else.
AWKWARD = (
    "true",
    "yes",
    "null",
    "~",
    "1e5",
    "1.0",
    "0x1f",
    "1_000",
    "2024-01-01",
    "12:30",
    "",
    " a ",
    "a: b",
    "a # b",
    "- a",
    "{a}",
    "it's",
    'say "so"',
    "\\boxed{",
    "${seed}",
    "a${",
    "\\${seed}",
    "\\\\${seed} and ${x",
    "$${seed}\\",
    "line\nbreak\ttab",
    "caf\u00e9 \u2028 \U0001f600 \x07",
    "x" * 300,
)


@pytest.mark.parametrize("docs", [False, True])
def test_the_printed_demo_recipe_is_the_same_recipe(docs: bool, write: Write, demo_recipe: str) -> None:
    loaded = load_recipe(demo_recipe, ["seed=3"])
    again = load_recipe(write("again.yaml", render(loaded, docs)))
    assert again.recipe == loaded.recipe
    assert recipe_hash(again.recipe) == recipe_hash(loaded.recipe)
    assert set(again.sources.values()) == {"again.yaml"}


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_text_survives(text: str, write: Write) -> None:
    loaded = load_recipe(write("a.yaml", ""))
    loaded.tree["name"] = text
    loaded.tree["tokenizer"]["words"] = [text + "xx", "yy"]
    loaded.tree["data"]["options"] = {"plain": text, "nested": [{text + "k": text}]}
    loaded.sources.update({"data.options.plain": "a.yaml", "data.options.nested": "a.yaml"})
    again = load_recipe(write("again.yaml", render(loaded)))
    assert again.tree == loaded.tree


def test_numbers_keep_their_type_and_every_digit(write: Write) -> None:
    options = "{a: 1, b: 1.0, c: 1e22, d: 0.1, e: 5e-324, f: 0.30000000000000004, g: null, h: true, i: {}, j: []}"
    loaded = load_recipe(write("a.yaml", f"data: {{options: {options}}}"))
    again = load_recipe(write("again.yaml", render(loaded)))
    assert repr(again.tree["data"]) == repr(loaded.tree["data"])
    assert isinstance(again.tree["data"]["options"]["c"], float)


def test_every_leaf_says_where_it_came_from_in_one_column(write: Write) -> None:
    write("base.yaml", "seed: 1")
    path = write("top.yaml", "defaults: [base.yaml]\nname: top\ndata: {options: {deep: {a: 1}}}")
    lines = render(load_recipe(path, ["rl.steps=2"])).splitlines()
    stripped = [line.split("  # ") for line in lines]
    comments = {left.strip(): right[0] for left, *right in stripped if right}
    assert comments["seed: 1"] == "base.yaml"
    assert comments["name: top"] == "top.yaml"
    assert comments["a: 1"] == "top.yaml"
    assert comments["steps: 2"] == "command line"
    assert comments["prompts_per_step: 16"] == "default"
    assert len({line.index("  # ") for line in lines if "  # " in line}) == 1
    assert all(line.rstrip().endswith(":") for line in lines if "  # " not in line)


def test_a_long_value_does_not_move_the_comments_of_others(write: Write) -> None:
    path = write("a.yaml", f"name: {'x' * 200}\nseed: 3")
    text = render(load_recipe(path))
    assert f"name: {'x' * 200}  # a.yaml\n" in text
    (seed,) = [line for line in text.splitlines() if line.startswith("seed")]
    assert seed.index("#") < 70


def test_docs_stand_above_their_key(write: Write) -> None:
    lines = [line.strip() for line in render(load_recipe(write("a.yaml", "")), docs=True).splitlines()]
    above = lines[lines.index("# Steps; each rolls out one batch and trains on it.") + 1]
    assert above.startswith("steps: 60")
    assert all(f"# {key.doc}" in lines for key in keys().values())
