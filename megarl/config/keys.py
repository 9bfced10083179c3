"""A schema as a flat table: every key's dotted path with its type, default, meaning and range."""

import dataclasses
import types
from dataclasses import dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from megarl.config.schema import Recipe

_WORDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false values"),
    str: ("text", "texts"),
    dict: ("a mapping", "mappings"),
}


@dataclass(frozen=True)
class Key:
    """One leaf of a schema.

    Attributes:
        path: dotted key.
        kind: int, float, bool, str, list or dict.
        item: type of a list's entries; None for other kinds.
        optional: whether null is a value.
        default: value where a file is silent, before interpolation.
        doc: its meaning, one sentence.
        low: smallest allowed value.
        high: largest allowed value.
        above: bound that the value must exceed.
        choices: the allowed strings.
    """

    path: str
    kind: type
    item: type | None
    optional: bool
    default: Any
    doc: str
    low: float | None
    high: float | None
    above: float | None
    choices: tuple[str, ...] | None

    @property
    def kind_in_words(self) -> str:
        """The type for a reader, such as "a list of whole numbers"."""
        words = f"a list of {_WORDS[self.item][1]}" if self.kind is list else _WORDS[self.kind][0]
        return f"{words} or null" if self.optional else words


@cache
def sections(schema: type = Recipe) -> dict[str, type]:
    """Dotted path -> dataclass of every section, in the order of the schema. The whole of it is ''."""
    found: dict[str, type] = {}
    _collect_sections(schema, "", found)
    return found


@cache
def keys(schema: type = Recipe) -> dict[str, Key]:
    """Dotted path -> key of every leaf, in the order of the schema."""
    found: dict[str, Key] = {}
    for prefix, section in sections(schema).items():
        hints = get_type_hints(section)
        for field in dataclasses.fields(section):
            path = join(prefix, field.name)
            if path not in sections(schema):
                found[path] = _key(path, hints[field.name], field)
    return found


def join(prefix: str, name: str) -> str:
    """The dotted path of `name` in the section `prefix`."""
    return f"{prefix}.{name}" if prefix else name


def _collect_sections(section: type, path: str, found: dict[str, type]) -> None:
    found[path] = section
    for name, hint in get_type_hints(section).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            _collect_sections(hint, join(path, name), found)


def _key(path: str, hint: Any, field: "dataclasses.Field[Any]") -> Key:
    optional = get_origin(hint) in (Union, types.UnionType)
    if optional:
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    kind = get_origin(hint) or hint
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return Key(
        path=path,
        kind=kind,
        item=get_args(hint)[0] if kind is list else None,
        optional=optional,
        default=default,
        **field.metadata,
    )
