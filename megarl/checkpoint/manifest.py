"""What a checkpoint's manifest must say before anything of it is used: a digest proves who wrote it, not what."""

import math
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from megarl.checkpoint.names import rank_file
from megarl.checkpoint.state import RunState
from megarl.config.errors import RecipeError
from megarl.config.load import recipe_from_tree
from megarl.config.refusal import in_words
from megarl.config.resume import changes, listed
from megarl.config.schema import Recipe
from megarl.drift.auto import Level

_LARGEST = 2**63
"""Above every count, and what a tensor of int64 cannot hold."""
_DIGEST = {"bytes": int, "sha256": str}
_ENGINE = {"name": str, "releases": list[str]}


def complaint(manifest: Mapping[str, Any], name: str) -> str | None:
    """What is wrong with the list of files or the state; None where both are what a save writes.

    Args:
        manifest: as it was read.
        name: of the checkpoint's folder.
    """
    if not fits(manifest.get("files"), dict[str, dict[str, Any]]):
        return "its manifest has no list of files"
    for file, digest in manifest["files"].items():
        if not _is_inside(file) or not _has(digest, _DIGEST):
            return f"its manifest has {in_words(file)} in the list of files, which is none of a checkpoint's"
    state, hints = manifest.get("state"), get_type_hints(RunState)
    if not isinstance(state, dict) or not set(state) <= set(hints) - {"awaited"}:
        return "its manifest has no state of a run"
    for key, value in state.items():
        if not fits(value, hints[key]) or (key == "correction_level" and value > max(Level)):
            return f"its manifest has {key}={in_words(value)} in the state, which no run has"
    if (saved := RunState(**state).folder_name) != name:
        return f"its manifest is that of {saved}"
    return None


def why_not_resumed(manifest: Mapping[str, Any], recipe: Recipe) -> str | None:
    """Why a run cannot go on from it; None where it can.

    Args:
        manifest: without a `complaint`.
        recipe: of the run, in whatever layout.
    """
    try:
        saved = recipe_from_tree(manifest["recipe"])
    except RecipeError as error:
        return f"its manifest is not of this release: {str(error).rstrip('.')}"
    except (KeyError, TypeError, AttributeError):
        return "its manifest has no recipe"
    if others := changes(asdict(saved), asdict(recipe)).fixed:
        return f"its manifest is of another recipe: {listed(others)}"
    for key, kind in (("optimizers", dict[str, bool]), ("libraries", dict[str, str])):
        if not fits(manifest.get(key), kind):
            return f"its manifest has {key}={in_words(manifest.get(key))}, which no save writes"
    # those of an older release tell nothing of the engine
    if "engine" in manifest and not _has(manifest["engine"], _ENGINE):
        return f"its manifest has engine={in_words(manifest['engine'])}, which no save writes"
    state = RunState(**manifest["state"])
    if state.phase != "done" and state.step > (recipe.sft if state.phase == "sft" else recipe.rl).steps:
        return f"its manifest has step={in_words(state.step)} in the state, and its recipe fewer steps"
    trainees = ["policy", "critic"] if recipe.rl.advantage == "gae" and state.phase != "sft" else ["policy"]
    if absent := [name for name in trainees if name not in manifest["optimizers"]]:
        return f"its manifest tells nothing of the {absent[0]}"
    missing = next((name for name in _needed(trainees, saved) if name not in manifest["files"]), None)
    return None if missing is None else f"its manifest does not list {missing}"


def fits(value: Any, kind: Any) -> bool:
    """Whether a value from JSON is of a type, its numbers finite and its whole numbers counts below 2^63.

    Args:
        value: what was read.
        kind: int, float, bool, str, None, Any, or a Literal, union, list or dict with text for keys of these.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in parts
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is list:
        return isinstance(value, list) and all(fits(each, parts[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(each, parts[1]) for each in value.values())
    if kind is Any:
        return _is_finite(value)
    if kind is int:
        return type(value) is int and 0 <= value < _LARGEST
    if kind is float:
        # compared, as a whole number beyond every float cannot be converted
        return type(value) in (int, float) and -sys.float_info.max <= value <= sys.float_info.max
    return value is None if kind is types.NoneType else type(value) is kind


def _is_finite(value: Any) -> bool:
    """Whether no number in it is one that JSON does not have."""
    if isinstance(value, float):
        return math.isfinite(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_is_finite, inner))


def _has(value: Any, kinds: Mapping[str, Any]) -> bool:
    return isinstance(value, dict) and value.keys() == kinds.keys() and all(fits(value[k], kinds[k]) for k in kinds)


def _is_inside(file: str) -> bool:
    path = PurePosixPath(file)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in file


def _needed(trainees: Sequence[str], saved: Recipe) -> Iterator[str]:
    """Files without which a trainee, or a rank, does not get its state back."""
    for name in trainees:
        yield from (f"{name}/.metadata", f"{name}/common.pt")
    yield from (rank_file("rng", rank) for rank in range(saved.parallel.world_size))
