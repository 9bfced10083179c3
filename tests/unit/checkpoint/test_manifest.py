"""Manifests whose digest is right and whose contents are not: passed over with a reason, whatever they hold."""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from megarl.checkpoint.manifest import why_not_resumed
from megarl.checkpoint.state import RunState
from megarl.checkpoint.store import MANIFEST, CheckpointStore, _manifest_digest, damage_of
from megarl.config.schema import Recipe
from megarl.config.training import RLConfig

RECIPE = Recipe(rl=RLConfig(steps=8, advantage="gae"))
FILES = ("policy/.metadata", "policy/common.pt", "critic/.metadata", "critic/common.pt", "rng-00000.safetensors")
FACTS = {
    "recipe": asdict(RECIPE),
    "optimizers": {"policy": True, "critic": True},
    "libraries": {"torch": "2.13"},
    "engine": {"name": "embedded", "releases": ["0.1"]},
}


def save(folder: Path, step: int) -> Path:
    """A checkpoint with every file that a run asks for, none of which holds anything."""
    store = CheckpointStore(folder, keep=9)
    for name in FILES:
        file = store.begin() / name if name == FILES[0] else store.staging / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    state = RunState(phase="rl", step=step, entropy_baseline=[0.1, -1e-9], nonfinite_updates={"policy": 1})
    return store.commit(state, json.loads(json.dumps(FACTS)))


def forge(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest, and gives it the digest of what it then holds."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    change(manifest)
    manifest["digest"] = _manifest_digest(manifest)
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))


def newest(folder: Path) -> Path:
    found = CheckpointStore(folder, keep=9).newest(partial(why_not_resumed, recipe=RECIPE))
    assert found is not None
    return found[0]


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for name in path[:-1]:
            manifest = manifest[name]
        manifest[path[-1]] = value

    return change


def drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for name in path[:-1]:
            manifest = manifest[name]
        del manifest[path[-1]]

    return change


FORGED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "files are a list": (put("files", value=[]), "has no list of files"),
    "a digest is a number": (put("files", "rng-00000.safetensors", value=7), "has no list of files"),
    "a digest lacks its size": (
        put("files", "rng-00000.safetensors", value={"sha256": ""}),
        'has "rng-00000.safetensors" in the list of files',
    ),
    "a file of somebody else's": (
        put("files", "../../run.json", value={"bytes": 1, "sha256": ""}),
        'has "../../run.json" in the list of files',
    ),
    "a file of a name that is too long": (put("files", "x" * 5000, value={"bytes": 1, "sha256": ""}), "cannot be read"),
    "no file": (put("files", value={}), "does not list policy/.metadata"),
    "no generators": (drop("files", "rng-00000.safetensors"), "does not list rng-00000.safetensors"),
    "more ranks than any machine": (
        put("recipe", "parallel", "world_size", value=10**18),
        "does not list rng-00001.safetensors",
    ),
    "no state": (drop("state"), "has no state of a run"),
    "a state of another kind": (put("state", "weather", value="fine"), "has no state of a run"),
    "a step in words": (put("state", "step", value="two"), "has step=two in the state"),
    "a step beyond every count": (put("state", "problems_drawn", value=10**40), "has problems_drawn=1000"),
    "a coefficient beyond every float": (put("state", "kl_coefficient", value=10**400), "has kl_coefficient=1000"),
    "no number": (put("state", "kl_coefficient", value=float("nan")), "has kl_coefficient=NaN"),
    "a correction that is none": (put("state", "correction_level", value=99), "has correction_level=99"),
    "true is no number": (put("state", "weight_version", value=True), "has weight_version=true"),
    "no phase of a run": (put("state", "phase", value="dpo"), "has phase=dpo"),
    "another checkpoint's": (put("state", "step", value=1), "is that of 1-rl-00000001"),
    "no recipe": (drop("recipe"), "has no recipe"),
    "a recipe of one word": (put("recipe", value="grpo"), "has no recipe"),
    "a section of one number": (
        put("recipe", "parallel", value=2),
        "is of another version of megarl (parallel=2",
    ),
    "a key of another release": (
        put("recipe", "rl", "luck", value=2),
        "is of another version of megarl (rl.luck=2",
    ),
    "another recipe": (put("recipe", "rl", "steps", value=9), "is of another recipe: rl.steps 9 -> 8"),
    "optimizers in a list": (put("optimizers", value=["policy"]), 'has optimizers=["policy"]'),
    "no word of the critic": (drop("optimizers", "critic"), "tells nothing of the critic"),
    "libraries of numbers": (put("libraries", value={"torch": 2.13}), "has libraries="),
    "an engine in words": (put("engine", value="vllm"), "has engine=vllm"),
}


@pytest.mark.parametrize("case", FORGED)
def test_what_is_forged_is_passed_over_with_its_reason(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, reason = FORGED[case]
    whole, forged = save(tmp_path, 1), save(tmp_path, 2)
    assert newest(tmp_path) == forged
    forge(forged, change)
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path) == whole
    (record,) = caplog.records
    assert str(forged) in record.getMessage() and reason in record.getMessage(), record.getMessage()


def test_a_step_that_the_recipe_does_not_have_is_passed_over(tmp_path: Path) -> None:
    whole = save(tmp_path, 1)
    save(tmp_path, 9)
    assert newest(tmp_path) == whole


GARBAGE: list[Any] = [None, True, -1, 10**30, 1e308, float("nan"), "", "x\0y", [], [[]], {}, {"a": {"b": [1]}}]


def test_no_garbage_ends_the_search(tmp_path: Path) -> None:
    """Every place of the manifest holds every kind of it in turn."""
    whole, forged = save(tmp_path, 1), save(tmp_path, 2)
    text = (forged / MANIFEST).read_text()
    manifest = json.loads(text)
    places = [(key,) for key in manifest if key != "digest"]
    places += [(key, inner) for key in ("state", "recipe", "files", "optimizers", "engine") for inner in manifest[key]]
    places += [("recipe", "parallel", key) for key in manifest["recipe"]["parallel"]]
    for place in places:
        for value in GARBAGE:
            forge(forged, put(*place, value=value))
            assert newest(tmp_path) in (whole, forged), (place, value)
            assert damage_of(forged) is None or "manifest" in str(damage_of(forged)), (place, value)
            (forged / MANIFEST).write_text(text)


def test_an_older_release_tells_nothing_of_the_engine(tmp_path: Path) -> None:
    forge(save(tmp_path, 1), drop("engine"))
    assert newest(tmp_path).name == "1-rl-00000001"


def test_a_copy_under_another_name_is_none_of_the_runs(tmp_path: Path) -> None:
    """Nor is it counted, or deleted, when checkpoints are dropped."""
    save(tmp_path, 1).rename(tmp_path / "1-rl-00000001.bak")
    (tmp_path / "1-rl-00000003-before-the-outage").mkdir()
    store = CheckpointStore(tmp_path, keep=1)
    assert store.names() == [] and store.newest() is None
    save(tmp_path, 2)
    assert store.names() == ["1-rl-00000002"] and (tmp_path / "1-rl-00000001.bak").exists()
