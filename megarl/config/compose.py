"""Which mappings a recipe is made of: its files, base files first, then the command line."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megarl.config.errors import RecipeError
from megarl.config.refusal import refusal, shortened
from megarl.config.yaml_text import DEEPEST, parse_mapping, parse_value

COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Layer:
    """One mapping of recipe keys. Later layers win over earlier ones.

    Attributes:
        source: the file it was read from, or 'command line'.
        tree: nested keys, interpolations unresolved, nothing checked.
    """

    source: str
    tree: dict[str, Any]


def file_layers(path: Path, chain: tuple[Path, ...] = ()) -> list[Layer]:
    """The layers of a recipe file: those of the files under its `defaults`, in order, then its own.

    Args:
        path: the file; paths under `defaults` are relative to its folder.
        chain: the files that led here, outermost first.

    Raises:
        RecipeError: a file is missing, unreadable or not a mapping, `defaults` is not a list of paths, or files
            name each other in a circle.
    """
    label = os.path.normpath(path)
    text = _read(path, chain)
    if path.resolve() in (link.resolve() for link in chain):
        circle = " -> ".join(os.path.normpath(link) for link in (*chain, path))
        raise RecipeError(f"{label} is among its own defaults ({circle}); take one of these entries out.")
    tree = parse_mapping(text, label)
    defaults = tree.pop("defaults", [])
    if not isinstance(defaults, list) or not all(isinstance(entry, str) for entry in defaults):
        raise refusal("defaults", defaults, "is not a list of files", "write it as [base.yaml]", label)
    bases = [layer for entry in defaults for layer in file_layers(path.parent / entry, (*chain, path))]
    return [*bases, Layer(label, tree)]


def override_layer(argument: str) -> Layer:
    """The layer of one `key=value` argument.

    Raises:
        RecipeError: the argument has another form, or its value is not YAML, or nests too deep.
    """
    path, equals, text = argument.partition("=")
    parts = path.split(".")
    if not equals or not all(parts) or path != path.strip():
        raise RecipeError(
            f"The argument '{shortened(argument)}' is not of the form key=value; write it like rl.steps=10."
        )
    if len(parts) > DEEPEST:
        raise RecipeError(f"The argument '{shortened(argument)}' has a key of {len(parts)} parts; mend the key.")
    if path == "defaults":
        raise RecipeError(
            f"The argument '{shortened(argument)}' cannot add files to a recipe; write defaults in a recipe file."
        )
    tree = parse_value(text, argument)
    for part in reversed(parts):
        tree = {part: tree}
    return Layer(COMMAND_LINE, tree)


def _read(path: Path, chain: tuple[Path, ...]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        # a path can hold a zero byte, which Python tells as a ValueError
        text = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        reason = error.strerror if isinstance(error, OSError) else text
        named_by = f", which {os.path.normpath(chain[-1])} names under defaults," if chain else ""
        raise RecipeError(
            f"The recipe {os.path.normpath(path)}{named_by} cannot be read: {reason}; check the path."
        ) from error
