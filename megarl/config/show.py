"""The resolved recipe as YAML that says where each value came from."""

import inspect
from typing import Any

from megarl.config.keys import join, keys, sections
from megarl.config.load import Loaded
from megarl.config.yaml_text import format_literal, format_value

# Longer lines have their comment right behind them, so that one long list does not push all comments off the screen.
_WIDEST_ALIGNED = 60


def render(loaded: Loaded, docs: bool = False) -> str:
    """The recipe as YAML text, which is itself a recipe with the same values.

    Args:
        loaded: the recipe.
        docs: whether each key has its meaning on a comment line above it.

    Returns:
        One `key: value  # source` line a leaf, in the schema's order, comments aligned, newline at the end.
    """
    lines = _lines(loaded.tree, loaded.sources, docs)
    widths = [len(text) for text, source in lines if source and len(text) <= _WIDEST_ALIGNED]
    column = max(widths, default=0)
    return "".join(f"{text:<{column}}  # {source}\n" if source else f"{text}\n" for text, source in lines)


def _lines(tree: dict[str, Any], sources: dict[str, str], docs: bool, prefix: str = "") -> list[tuple[str, str]]:
    """(line, source) pairs; sections and documentation lines have no source."""
    indent = "  " * (prefix.count(".") + 1 if prefix else 0)
    lines: list[tuple[str, str]] = []
    for name, value in tree.items():
        path = join(prefix, name)
        if docs and (doc := _doc(path)):
            lines.append((f"{indent}# {doc}", ""))
        if isinstance(value, dict) and value:
            lines.append((f"{indent}{format_literal(name)}:", ""))
            lines += _lines(value, sources, docs, path)
        else:
            lines.append((f"{indent}{format_literal(name)}: {format_value(value)}", sources[path]))
    return lines


def _doc(path: str) -> str:
    if path in keys():
        return keys()[path].doc
    return inspect.getdoc(sections()[path]) or "" if path in sections() else ""
