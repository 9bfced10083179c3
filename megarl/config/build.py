"""From a resolved tree of values to the schema's dataclasses."""

from collections.abc import Mapping
from typing import Any

from megarl.config.check_ranges import check_range, check_storable
from megarl.config.keys import join, keys, sections
from megarl.config.provenance import leaves


def check_values(tree: dict[str, Any], origin: Mapping[str, str], schema: type) -> None:
    """Refuses values that no file can hold, and values outside their key's range.

    Args:
        tree: every value of the schema, interpolations resolved.
        origin: dotted key -> where the value came from, for messages.
        schema: dataclass of the whole tree.

    Raises:
        RecipeError: naming the key, its value and the nearest right one.
    """
    for path, value in leaves(tree):
        check_storable(".".join(path), value, origin[".".join(path)])
    for dotted, key in keys(schema).items():
        if key.kind is not dict:
            check_range(key, value_at(tree, dotted), origin[dotted])


def build(schema: type, tree: Mapping[str, Any]) -> Any:
    """The schema's dataclass with the tree's values; keys that the tree lacks have their defaults.

    Raises:
        TypeError: the tree has a key that the schema does not.
    """
    return _section(sections(schema), tree, "")


def value_at(tree: dict[str, Any], dotted: str) -> Any:
    """What the tree holds at a dotted path; the whole of it at ''. Raises: KeyError: nothing."""
    node: Any = tree
    for name in dotted.split(".") if dotted else ():
        node = node[name]
    return node


def _section(known: Mapping[str, type], tree: Mapping[str, Any], path: str) -> Any:
    values = {}
    for name, value in tree.items():
        dotted = join(path, name)
        values[name] = _section(known, value, dotted) if dotted in known else value
    return known[path](**values)
