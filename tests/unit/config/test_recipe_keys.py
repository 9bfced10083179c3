"""Refusals of files, keys and single values: each message, whole."""

import os
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from megarl.config.errors import RecipeError
from megarl.config.keys import keys
from megarl.config.load import load_recipe
from megarl.config.schema import Recipe
from megarl.submit.profile import Profile

Write = Callable[[str, str], str]

FILES = {
    "duplicate key": (
        "rl:\n  steps: 1\n  steps: 2\n",
        "a.yaml is not valid YAML: found duplicate key steps at line 3; mend the file there.",
    ),
    "recursive alias": (
        "data: &a {options: *a}",
        "a.yaml is not valid YAML: YAML recursive aliases are not supported at line 1",
    ),
    "not a number": ("seed: 0x_", "a.yaml is not valid YAML: invalid literal for int() with base 16: ''"),
    "python tag": ("name: !!python/object/apply:os.getcwd []", "a.yaml is not valid YAML: could not determine a"),
    "bad interpolation": ("name: ${", "a.yaml is not valid YAML: no viable alternative at input '${'"),
    "list": ("[1, 2]", "a.yaml holds a list where a recipe is a mapping; write it as key: value lines."),
    "scalar": ("hello", "a.yaml holds a single value where a recipe is a mapping; write it as key: value lines."),
    "two documents": ("seed: 1\n---\nseed: 2", "a.yaml is not valid YAML: but found another document at line 2"),
    "defaults not a list": ("defaults: b.yaml", 'defaults="b.yaml" (a.yaml) is not a list of files; write it as'),
    "defaults of numbers": ("defaults: [1]", "defaults=[1] (a.yaml) is not a list of files; write it as [base.yaml]."),
    "defaults null": ("defaults:", "defaults=null (a.yaml) is not a list of files; write it as [base.yaml]."),
    "defaults missing": (
        "defaults: [sub/b.yaml]",
        "The recipe sub/b.yaml, which a.yaml names under defaults, cannot be read: No such file or directory; "
        "check the path.",
    ),
    "lists nested deep": (
        "data: {options: {a: " + "[" * 300 + "]" * 300 + "}}",
        "a.yaml is not valid YAML: it nests deeper than 32 levels; mend the file there.",
    ),
    "mappings nested beyond the parser": (
        "a: {" * 2000 + "}" * 2000,
        "a.yaml is not valid YAML: it nests deeper than 32 levels; mend the file there.",
    ),
    "aliases of aliases": (
        "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30)),
        "a.yaml is not valid YAML: it holds more than 100000 values, aliases written out; mend the file there.",
    ),
    "interpolations nested deep": ("name: " + "${" * 1000 + "}" * 1000, "a.yaml is not valid YAML: "),
    "defaults with a zero byte": (
        'defaults: ["b\\0.yaml"]',
        "The recipe b\0.yaml, which a.yaml names under defaults, cannot be read: embedded null byte; check the path.",
    ),
    "defaults circle": (
        "defaults: [a.yaml]",
        "a.yaml is among its own defaults (a.yaml -> a.yaml); take one of these entries out.",
    ),
}

LINES = {
    "rl: {stepz: 3}": "rl.stepz=3 (a.yaml) is not a recipe key; did you mean rl.steps?",
    "rl: {objectiv: {clip_high: 1}}": (
        'rl.objectiv={"clip_high": 1} (a.yaml) is not a recipe key; did you mean rl.objective?'
    ),
    "lr: 0.1": (
        "lr=0.1 (a.yaml) is not a recipe key; "
        "did you mean sft.optimizer.lr or rl.critic.optimizer.lr or rl.optimizer.lr?"
    ),
    "optimiser: {}": (
        "optimiser={} (a.yaml) is not a recipe key; did you mean sft.optimizer or rl.critic.optimizer or rl.optimizer?"
    ),
    "rollout: {stepz: 1}": "rollout.stepz=1 (a.yaml) is not a recipe key; did you mean sft.steps or rl.steps?",
    "reward: {zzz: 1}": "reward.zzz=1 (a.yaml) is not a recipe key; the keys here are reward.name.",
    "3: 4": "3=4 (a.yaml) has a key that is not one plain name; nest dotted keys.",
    "rl.steps: 4": "rl.steps=4 (a.yaml) has a key that is not one plain name; nest dotted keys.",
    "model: 3": "model=3 (a.yaml) is a section, not a value; give its keys, such as model.family.",
    "rl: {optimizer: [1]}": (
        "rl.optimizer=[1] (a.yaml) is a section, not a value; give its keys, such as rl.optimizer.lr."
    ),
    "sft:": "sft=null (a.yaml) is a section, not a value; give its keys, such as sft.steps.",
    "rl: {steps: many}": "rl.steps=many (a.yaml) is not a whole number; write it like 3.",
    "rl: {steps: '3'}": 'rl.steps="3" (a.yaml) is not a whole number; write it like 3.',
    "sft: {batch_size: 10000000019}": "sft.batch_size=10000000019 (a.yaml) is above 1000000; give at most 1000000.",
    "rl: {steps: 3.0}": "rl.steps=3.0 (a.yaml) is not a whole number; write it like 3.",
    "rl: {steps: true}": "rl.steps=true (a.yaml) is not a whole number; write it like 3.",
    "rl: {steps: {a: 1}}": 'rl.steps={"a": 1} (a.yaml) is not a whole number; write it like 3.',
    "rl: {optimizer: {lr: true}}": "rl.optimizer.lr=true (a.yaml) is not a number; write it like 0.5.",
    f"rl: {{optimizer: {{lr: {10**400}}}}}": "rl.optimizer.lr=1000",
    "model: {tie_embeddings: 1}": "model.tie_embeddings=1 (a.yaml) is not true or false; write it like true.",
    "name: 3": "name=3 (a.yaml) is not text; write it like 'text', in quotes.",
    "model: {init_from: 3}": "model.init_from=3 (a.yaml) is not text or null; write it like 'text', in quotes.",
    "evaluate: {ks: 3}": "evaluate.ks=3 (a.yaml) is not a list of whole numbers; write it like [3].",
    "evaluate: {ks: [1, x]}": 'evaluate.ks=[1, "x"] (a.yaml) is not a list of whole numbers; write it like [3].',
    "evaluate: {ks: [1, null]}": "evaluate.ks=[1, null] (a.yaml) is not a list of whole numbers; write it like [3].",
    "data: {options: 3}": "data.options=3 (a.yaml) is not a mapping; write it like {name: value}.",
    "data: {options: {1: 2}}": ('data.options={"1": 2} (a.yaml) has the key 1, which is not text; write it in quotes.'),
    "data: {options: {a: [{x: !!binary aGk=}]}}": (
        "data.options.a.x=\"b'hi'\" (a.yaml) is neither a number, text, list nor mapping; use one of these."
    ),
    "seed:": "seed=null (a.yaml) has no value; give a whole number or leave the key out.",
    "tokenizer: {words: null}": (
        "tokenizer.words=null (a.yaml) has no value; give a list of texts or leave the key out."
    ),
    "name: ???": 'name="???" (a.yaml) stands for a missing value; give the value or leave the key out.',
    "data: {options: {a: '???'}}": 'data.options.a="???" (a.yaml) stands for a missing value; give the value or',
    "seed: -1": "seed=-1 (a.yaml) is below 0; give at least 0.",
    "seed: 4294967296": "seed=4294967296 (a.yaml) is above 4294967295; give at most 4294967295.",
    # which vLLM would take for 0.01
    "rollout: {temperature: 0.009}": "rollout.temperature=0.009 (a.yaml) is below 0.01; give at least 0.01.",
    # llama3's scaling slows frequencies, so transformers refuses it too
    "model: {rope_scaling: llama3, rope_scaling_factor: 0.5}": (
        "model.rope_scaling_factor=0.5 (a.yaml) is below 1; give at least 1."
    ),
    "rl: {optimizer: {lr: 0}}": "rl.optimizer.lr=0.0 (a.yaml) is not above 0; give more than 0.",
    "rl: {optimizer: {lr: .nan}}": "rl.optimizer.lr=NaN (a.yaml) is not a finite number; give one.",
    "rl: {optimizer: {lr: .inf}}": "rl.optimizer.lr=Infinity (a.yaml) is not a finite number; give one.",
    "data: {options: {a: [1, .nan]}}": "data.options.a[1]=NaN (a.yaml) is not a finite number; give one.",
    "data: {options: {a: [{b: -.inf}]}}": "data.options.a[0].b=-Infinity (a.yaml) is not a finite number; give one.",
    "resume: atuo": "resume=atuo (a.yaml) is not a known choice; did you mean auto?",
    "resume: xyz": "resume=xyz (a.yaml) is not a known choice; use one of auto, must, never.",
    "name: ${nope}": "name cannot be resolved: Interpolation key 'nope' not found; mend the ${...} in it.",
    "name: ${name}": "name cannot be resolved: Recursive interpolation detected; mend the ${...} in it.",
    "name: ${oc.env:MEGARL_NOT_SET}": "name cannot be resolved: KeyError raised while resolving interpolation: ",
    "seed: ${name}": "seed cannot be resolved: While dereferencing interpolation '${name}': Value 'run' of type 'str' ",
    "name: ${model.init_from}": "name cannot be resolved: While dereferencing interpolation '${model.init_from}': Inc",
    "model: ${name}": "model cannot be resolved: Invalid type assigned: str is not a subclass of ModelConfig. value: ",
    "seed: ${rl.objective.clip_low}": "seed cannot be resolved: While dereferencing interpolation",
    "resume: ${name}": "resume=run (a.yaml) is not a known choice; use one of auto, must, never.",
}

ARGUMENTS = {
    "rl.steps": "The argument 'rl.steps' is not of the form key=value; write it like rl.steps=10.",
    "=3": "The argument '=3' is not of the form key=value; write it like rl.steps=10.",
    "rl..steps=3": "The argument 'rl..steps=3' is not of the form key=value; write it like rl.steps=10.",
    "rl.steps =3": "The argument 'rl.steps =3' is not of the form key=value; write it like rl.steps=10.",
    f"data.options.{'a.' * 2000}b=1": "The argument 'data.options.a.a",
    f"data.options.a={'[' * 300}{']' * 300}": "The argument 'data.options.a=[[",
    "rl.steps=[": "The argument 'rl.steps=[' has a value that is not YAML: ",
    "rl.steps={a: 1, a: 2}": "The argument 'rl.steps={a: 1, a: 2}' has a value that is not YAML: found duplicate key a",
    "seed=0x_": "The argument 'seed=0x_' has a value that is not YAML: invalid literal",
    "defaults=[b.yaml]": "The argument 'defaults=[b.yaml]' cannot add files to a recipe; write defaults in a recipe",
    "rl.stepz=3": "rl.stepz=3 (command line) is not a recipe key; did you mean rl.steps?",
    "rl.objective.clip.high=3": 'rl.objective.clip={"high": 3} (command line) is not a recipe key; did you mean rl.obj',
    "rl.steps.x=3": 'rl.steps={"x": 3} (command line) is not a whole number; write it like 3.',
    "name=": "name=null (command line) has no value; give text or leave the key out.",
    "rl.steps=-1": "rl.steps=-1 (command line) is below 0; give at least 0.",
    "data.prompt_template={prompt}": (
        "data.prompt_template={\"prompt\": null} (command line) is not text; write it like 'text', in quotes."
    ),
}


def _refusal(path: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize("case", FILES)
def test_bad_file(case: str, write: Write) -> None:
    text, message = FILES[case]
    assert _refusal(write("a.yaml", text)).startswith(message)


@pytest.mark.parametrize("text", LINES)
def test_bad_line(text: str, write: Write) -> None:
    refusal = _refusal(write("a.yaml", text))
    assert refusal.startswith(LINES[text])
    assert "\n" not in refusal
    assert refusal[-1] in ".?"


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_bad_argument(argument: str, write: Write) -> None:
    assert _refusal(write("a.yaml", ""), argument).startswith(ARGUMENTS[argument])


def test_missing_recipe() -> None:
    assert _refusal("no/such.yaml") == (
        "The recipe no/such.yaml cannot be read: No such file or directory; check the path."
    )


def test_recipe_path_with_a_zero_byte() -> None:
    assert _refusal("a\0.yaml") == "The recipe a\0.yaml cannot be read: embedded null byte; check the path."


def test_text_that_is_not_unicode(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, b"MEGARL_TEST_NAME", b"a\xff")
    assert _refusal(write("a.yaml", "name: ${oc.env:MEGARL_TEST_NAME}")) == (
        "name=\"'a\\\\udcff'\" (a.yaml) holds half a surrogate pair, which is no character; mend it."
    )


def test_folder_for_a_recipe(write: Write) -> None:
    write("folder/a.yaml", "")
    assert _refusal("folder") == "The recipe folder cannot be read: Is a directory; check the path."


def test_recipe_that_is_not_text(write: Write) -> None:
    with open(write("a.yaml", ""), "wb") as file:
        file.write(b"name: \xff")
    assert _refusal("a.yaml") == "The recipe a.yaml cannot be read: it is not UTF-8 text; check the path."


def test_circle_over_two_files(write: Write) -> None:
    write("sub/b.yaml", "defaults: [../a.yaml]")
    assert _refusal(write("a.yaml", "defaults: [sub/b.yaml]")) == (
        "a.yaml is among its own defaults (a.yaml -> sub/b.yaml -> a.yaml); take one of these entries out."
    )


def test_the_refusal_names_the_file_that_holds_the_mistake(write: Write) -> None:
    write("base.yaml", "rl: {stepz: 1}")
    assert "(base.yaml)" in _refusal(write("a.yaml", "defaults: [base.yaml]"))


def test_free_mappings_take_any_plain_value(write: Write) -> None:
    text = "data: {options: {a-b: null, c: [1, x, {d: true}], when: 2024-01-01}}"
    options = load_recipe(write("a.yaml", text)).recipe.data.options
    assert options == {"a-b": None, "c": [1, "x", {"d": True}], "when": "2024-01-01"}


@pytest.mark.parametrize("schema", [Recipe, Profile])
def test_no_key_of_seconds_overflows_a_clock(schema: type) -> None:
    """An event, which is what a process waits for its end with, takes less than threading.TIMEOUT_MAX."""
    seconds = [key for path, key in keys(schema).items() if path.endswith("_s")]
    assert len(seconds) > 2
    for key in seconds:
        assert key.high is not None and key.high < threading.TIMEOUT_MAX, key.path
        assert timedelta(seconds=key.high) > timedelta(0)
