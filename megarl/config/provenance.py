"""Where each value of a resolved recipe came from."""

from collections.abc import Iterator, Sequence
from typing import Any

from megarl.config.compose import Layer

DEFAULT = "default"


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every (path, value) of a nested mapping. Lists and empty mappings are values."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def sources(tree: dict[str, Any], layers: Sequence[Layer]) -> dict[str, str]:
    """Dotted key -> source of every leaf of `tree`: the last layer that set it, or 'default'."""
    found: dict[str, str] = {}
    for path, _ in leaves(tree):
        setters = [layer.source for layer in layers if _sets(layer.tree, path)]
        found[".".join(path)] = setters[-1] if setters else DEFAULT
    return found


def _sets(tree: dict[str, Any], path: tuple[str, ...]) -> bool:
    node: Any = tree
    for name in path:
        if not isinstance(node, dict):
            # An interpolation stands for the whole section that the leaf is in.
            return True
        if name not in node:
            return False
        node = node[name]
    return True
