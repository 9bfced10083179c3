"""Checks of one layer as it was written: known keys, and values of the right type."""

from difflib import get_close_matches
from typing import Any

from megarl.config.compose import Layer
from megarl.config.errors import RecipeError
from megarl.config.keys import Key, join, keys, sections
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe

_EXAMPLES: dict[Any, str] = {int: "3", float: "0.5", bool: "true", str: "'text', in quotes", dict: "{name: value}"}
# a list of numbers is a band around 1 wherever the schema has one
_LIST_EXAMPLES: dict[Any, str] = {int: "[3]", float: "[0.9, 1.1]", str: "['text', in quotes]"}


def check_layer(layer: Layer, schema: type = Recipe) -> None:
    """Refuses keys that the schema does not have and values of another type than their key's.

    Interpolations are left to the merge, which knows what they stand for.

    Raises:
        RecipeError: naming the key, its value, and the nearest known key or the right type.
    """
    _check_section(layer.tree, "", layer.source, schema)


def _check_section(tree: dict[str, Any], prefix: str, source: str, schema: type) -> None:
    for name, value in tree.items():
        path = join(prefix, str(name))
        if not isinstance(name, str) or "." in name:
            raise refusal(path, value, "has a key that is not one plain name", "nest dotted keys", source)
        if path in sections(schema):
            if isinstance(value, dict):
                _check_section(value, path, source, schema)
            elif not _is_interpolation(value):
                raise _section_refusal(path, value, source, schema)
        elif path in keys(schema):
            _check_literal(keys(schema)[path], value, source)
        else:
            raise _unknown(path, value, source, schema)


def _check_literal(key: Key, value: Any, source: str) -> None:
    _refuse_missing_mark(key.path, value, source)
    # null empties a free mapping that an earlier layer filled, which merging alone cannot
    if value is None and not key.optional and key.kind is not dict:
        raise refusal(key.path, None, "has no value", f"give {key.kind_in_words} or leave the key out", source)
    if value is None or _is_interpolation(value):
        return
    if not _is_a(value, key.kind) or (key.item and not all(_is_a(v, key.item) or _is_interpolation(v) for v in value)):
        example = _LIST_EXAMPLES[key.item] if key.item else _EXAMPLES[key.kind]
        raise refusal(key.path, value, f"is not {key.kind_in_words}", f"write it like {example}", source)
    if key.kind is dict:
        _check_free(key.path, value, source)


def _check_free(path: str, value: Any, source: str) -> None:
    _refuse_missing_mark(path, value, source)
    if isinstance(value, dict):
        for name, entry in value.items():
            # Recipes are stored and hashed as JSON, whose keys are text.
            if not isinstance(name, str):
                raise refusal(path, value, f"has the key {name!r}, which is not text", "write it in quotes", source)
            _check_free(join(path, name), entry, source)
    elif isinstance(value, list):
        for entry in value:
            _check_free(path, entry, source)
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise refusal(path, value, "is neither a number, text, list nor mapping", "use one of these", source)


def _is_a(value: Any, kind: type) -> bool:
    if kind is float:
        # A whole number beyond every float would overflow in the conversion.
        return type(value) is float or (type(value) is int and abs(value) < 2**1023)
    return type(value) is kind


def _is_interpolation(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _refuse_missing_mark(path: str, value: Any, source: str) -> None:
    # OmegaConf takes '???' for 'not given' and would quietly keep the default.
    if value == "???" or (isinstance(value, list) and "???" in value):
        raise refusal(path, value, "stands for a missing value", "give the value or leave the key out", source)


def _section_refusal(path: str, value: Any, source: str, schema: type) -> RecipeError:
    inner = [key for key in keys(schema) if key.startswith(f"{path}.")]
    return refusal(path, value, "is a section, not a value", f"give its keys, such as {inner[0]}", source)


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _unknown(path: str, value: Any, source: str, schema: type) -> RecipeError:
    prefix, _, name = path.rpartition(".")
    what = f"is not a {schema.__name__.lower()} key"
    known = [*keys(schema), *(section for section in sections(schema) if section)]
    siblings = [key for key in known if key.rpartition(".")[0] == prefix]
    elsewhere = get_close_matches(name, sorted({_last(key) for key in known}), n=1, cutoff=0.8)
    here = get_close_matches(name, [_last(key) for key in siblings], n=1)
    guesses = [join(prefix, here[0])] if here else [key for key in known if _last(key) in elsewhere]
    if guesses:
        return refusal(path, value, what, f"did you mean {' or '.join(guesses)}?", source)
    return refusal(path, value, what, f"the keys here are {', '.join(siblings)}", source)
