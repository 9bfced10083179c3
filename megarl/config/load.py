"""From a recipe file and command-line overrides to a checked recipe."""

import copy
import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from megarl.config.build import build, check_values, value_at
from megarl.config.check_init import with_init_layer
from megarl.config.check_keys import check_layer
from megarl.config.compose import Layer, file_layers, override_layer
from megarl.config.errors import RecipeError
from megarl.config.keys import keys
from megarl.config.provenance import leaves, sources
from megarl.config.resume import FREE_ON_RESUME, LAYOUT_ON_RESUME
from megarl.config.schema import Recipe
from megarl.config.validate import validate


@dataclass(frozen=True)
class Loaded:
    """A recipe that passed every check.

    Attributes:
        recipe: the recipe as plain dataclasses.
        tree: the same as nested dicts, interpolations resolved.
        sources: dotted key -> 'default', the file that set it (config.json of `model.init_from` is one), or
            'command line'; one for every leaf of `tree`.
    """

    recipe: Recipe
    tree: dict[str, Any]
    sources: dict[str, str]


def load_recipe(path: str | PathLike[str], overrides: Sequence[str] = ()) -> Loaded:
    """Reads, composes, resolves and checks a recipe. Nothing is started or written.

    Args:
        path: recipe file; files under its `defaults` come first and are relative to it.
        overrides: `key=value` arguments, dotted keys and YAML values, later ones winning.

    Raises:
        RecipeError: a file, a key, a value or a combination of values cannot be right.
    """
    layers = [*file_layers(Path(path)), *(override_layer(argument) for argument in overrides)]
    for layer in layers:
        check_layer(layer)
    # on a copy: resolving notes in the layers what they empty
    layers = with_init_layer(_resolve(copy.deepcopy(layers)), layers)
    tree = _resolve(layers)
    origin = sources(tree, layers)
    check_values(tree, origin, Recipe)
    recipe: Recipe = build(Recipe, tree)
    validate(recipe)
    return Loaded(recipe, asdict(recipe), origin)


def recipe_hash(recipe: Recipe) -> str:
    """SHA-256, in hex, of everything in the recipe that a resumed run must share with the run it resumes.

    Keys under `FREE_ON_RESUME` and `LAYOUT_ON_RESUME` are left out. The rest is hashed as canonical JSON: sorted keys,
    no blanks.
    """
    tree = asdict(recipe)
    for dotted in (*FREE_ON_RESUME, *LAYOUT_ON_RESUME):
        prefix, _, name = dotted.rpartition(".")
        del value_at(tree, prefix)[name]
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def recipe_from_tree(tree: dict[str, Any]) -> Recipe:
    """The recipe that a run's file holds: resolved and checked when the run was started.

    Raises:
        RecipeError: it has a key that this version does not know, or a value of another type.
        AttributeError: the tree is no mapping.
    """
    try:
        check_layer(Layer("as it was saved", tree))
    except RecipeError as error:
        told = str(error).rstrip(".?")
        raise RecipeError(f"The run's recipe is of another version of megarl ({told}); use that one.") from error
    recipe: Recipe = build(Recipe, tree)
    return recipe


def _resolve(layers: Sequence[Layer]) -> dict[str, Any]:
    try:
        merged: Any = copy.deepcopy(_defaults())
        for layer in layers:
            for dotted in _emptied(layer.tree):
                OmegaConf.update(merged, dotted, {}, merge=False)
            _make_way(merged, layer.tree)
            # unsafe for what is merged into, which is this function's own: it is changed in place
            merged = OmegaConf.unsafe_merge(merged, OmegaConf.create(layer.tree))
        resolved: Any = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    # a mapping over an interpolation that stands for a list is a TypeError
    except (OmegaConfBaseException, TypeError, RecursionError) as error:
        # What is left to go wrong here is an interpolation: literal values have been checked.
        place = getattr(error, "full_key", None) or " or ".join(_interpolated(layers))
        reason = str(error).split("\n")[0].rstrip(".")
        raise RecipeError(f"{place} cannot be resolved: {reason}; mend the ${{...}} in it.") from error
    return {str(name): value for name, value in resolved.items()}


@functools.cache
def _defaults() -> DictConfig:
    """The schema with its defaults; to make it takes thrice the time of a copy."""
    schema: DictConfig = OmegaConf.structured(Recipe)
    return schema


def _make_way(held: Any, tree: dict[str, Any]) -> None:
    """Takes out the lists of `held` that `tree` has a mapping for, and the other way round: OmegaConf merges neither.

    Only free mappings can hold such: elsewhere the layer's types have been checked.
    """
    for name, value in tree.items():
        if not isinstance(value, dict | list) or name not in held or OmegaConf.is_interpolation(held, name):
            continue
        before = held[name]
        if OmegaConf.is_dict(before) and isinstance(value, dict):
            _make_way(before, value)
        elif (OmegaConf.is_list(before) and isinstance(value, dict)) or OmegaConf.is_dict(before):
            held[name] = None


def _emptied(tree: dict[str, Any]) -> list[str]:
    """Free mappings that the layer sets to null: they lose what earlier layers put there. The null becomes {}."""
    emptied = []
    for dotted, key in keys().items():
        prefix, _, name = dotted.rpartition(".")
        section: Any = tree
        for part in prefix.split("."):
            section = section.get(part) if isinstance(section, dict) else None
        if key.kind is dict and isinstance(section, dict) and section.get(name, ...) is None:
            section[name] = {}
            emptied.append(dotted)
    return emptied


def _interpolated(layers: Sequence[Layer]) -> list[str]:
    found = [path for layer in layers for path, value in leaves(layer.tree) if isinstance(value, str) and "${" in value]
    return [".".join(path) for path in found]
