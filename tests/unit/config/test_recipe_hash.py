"""What a resumed run must share with the run it resumes."""

import os
import re
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest

from megarl.config.load import load_recipe, recipe_hash
from megarl.config.provenance import leaves
from megarl.config.resume import FREE_ON_RESUME, LAYOUT_ON_RESUME, Changes, changes, under
from megarl.config.schema import Recipe


def _changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return [*value, *(value[:1] or [1])]
    return {"a": 1} if isinstance(value, dict) else f"{value}x"


def _set(recipe: Recipe, path: tuple[str, ...], value: Any) -> None:
    node: Any = recipe
    for name in path[:-1]:
        node = getattr(node, name)
    setattr(node, path[-1], value)


def test_a_fresh_process_finds_the_same_hash() -> None:
    code = "import megarl.config.load as load; print(load.recipe_hash(load.Recipe()))"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert ended.stdout.strip() == recipe_hash(Recipe())
    assert re.fullmatch("[0-9a-f]{64}", ended.stdout.strip())


@pytest.mark.parametrize("path", [path for path, _ in leaves(asdict(Recipe()))], ids=".".join)
def test_every_key_but_the_free_ones_changes_the_hash(path: tuple[str, ...]) -> None:
    recipe = Recipe()
    node: Any = recipe
    for name in path:
        node = getattr(node, name)
    _set(recipe, path, _changed(node))
    dotted = ".".join(path)
    free = under(dotted, (*FREE_ON_RESUME, *LAYOUT_ON_RESUME))
    assert (recipe_hash(recipe) == recipe_hash(Recipe())) is free


def test_what_resumed_runs_may_change() -> None:
    """Paths, waits and how often, and with a note the layout; what decides the numbers is named with both values."""
    before, after = asdict(Recipe()), asdict(Recipe())
    assert changes(before, after) == Changes([], [], [])
    after["output_dir"] = "elsewhere"
    after["checkpoint"]["keep"] = 7
    after["engine"]["restarts"] = 0
    after["parallel"] |= {"tensor": 2, "distributed_optimizer": True}
    after["rl"]["micro_batch_size"] = 8
    after["rl"]["optimizer"]["lr"] = 0.5
    after["data"]["options"] = {"more": [1]}
    found = changes(before, after)
    assert found.free == ["engine.restarts 3 -> 0", "checkpoint.keep 2 -> 7"]
    assert found.layout == ["parallel.tensor 1 -> 2", "rl.micro_batch_size 64 -> 8"]
    assert found.fixed == [
        "parallel.distributed_optimizer false -> true",
        "rl.optimizer.lr 0.001 -> 0.5",
        "data.options.more (none) -> [1]",
    ]


def test_every_named_key_exists() -> None:
    known = {".".join(path) for path, _ in leaves(asdict(Recipe()))}
    for name in (*FREE_ON_RESUME, *LAYOUT_ON_RESUME):
        assert any(under(key, [name]) for key in known), name


def test_the_way_a_value_was_given_does_not_change_the_hash(demo_recipe: str) -> None:
    same = ["rl.optimizer.lr=5e-4", "model.rope_theta=10000", "data.options.slip=${data.options.slip_was}"]
    plain = load_recipe(demo_recipe, ["data.options.slip_was=0.03"]).recipe
    assert recipe_hash(load_recipe(demo_recipe, ["data.options.slip_was=0.03", *same]).recipe) == recipe_hash(plain)


def test_the_order_of_free_options_does_not_change_the_hash() -> None:
    left, right = Recipe(), Recipe()
    left.data.options = {"a": 1, "b": 2}
    right.data.options = {"b": 2, "a": 1}
    assert recipe_hash(left) == recipe_hash(right)
