"""YAML in and out, the only user of the parser.

OmegaConf's own reader does the parsing: it refuses duplicate keys, reads 1e-3 as a number, and leaves dates as text.
"""

import re
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from megarl.config.errors import RecipeError
from megarl.config.refusal import shortened

DEEPEST = 32
"""Levels of lists and mappings in a recipe; some 70 would exhaust Python's stack in OmegaConf."""

_MOST_VALUES = 100_000
"""Values in a recipe with its aliases written out, which a few lines of aliases of aliases can make endless."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_INTERPOLATION = re.compile(r"(\\*)\$\{")


def parse_mapping(text: str, label: str) -> dict[str, Any]:
    """The mapping that a YAML file holds, interpolations left as they are. An empty file is an empty mapping.

    Args:
        text: the file's text.
        label: the file's name, for errors.

    Raises:
        RecipeError: the text is not YAML, repeats a key, nests too deep, or holds something other than a mapping.
    """
    try:
        root = _composed(text)
        if root is not None and not isinstance(root, yaml.MappingNode):
            kind = "list" if isinstance(root, yaml.SequenceNode) else "single value"
            raise RecipeError(f"{label} holds a {kind} where a recipe is a mapping; write it as key: value lines.")
        tree: dict[str, Any] = _plain(OmegaConf.create(text))
        return tree
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError) as error:
        raise RecipeError(f"{label} is not valid YAML: {_complaint(error)}; mend the file there.") from error


def parse_value(text: str, argument: str) -> Any:
    """The value that a command-line override gives, typed as YAML would type it.

    Raises:
        RecipeError: the text is not a YAML value.
    """
    try:
        _composed(text)
        return _plain(OmegaConf.from_dotlist([f"value={text}"]))["value"]
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError) as error:
        raise RecipeError(
            f"The argument '{shortened(argument)}' has a value that is not YAML: {_complaint(error)}; "
            "quote it for YAML too."
        ) from error


def format_value(value: Any) -> str:
    """A resolved value as one line of YAML that `parse_mapping` and interpolation read back as the same value."""
    return format_literal(_escaped(value))


def format_literal(value: Any) -> str:
    """A value as one line of YAML that is not escaped: for keys, and for text whose interpolation is meant."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _escaped(value: Any) -> Any:
    # The text '${' in a resolved value stands for itself.
    if isinstance(value, str):
        return _INTERPOLATION.sub(lambda match: match[1] * 2 + r"\${", value)
    if isinstance(value, list):
        return [_escaped(entry) for entry in value]
    return {name: _escaped(entry) for name, entry in value.items()} if isinstance(value, dict) else value


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=False)


def _composed(text: str) -> Any:
    """The YAML node of the text, None for an empty one.

    Raises:
        yaml.YAMLError: the text is not YAML, or is too deep or too large to be a recipe.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    depth, values = _measured(root, {})
    if depth > DEEPEST:
        raise yaml.YAMLError(_too_deep())
    if values > _MOST_VALUES:
        raise yaml.YAMLError(f"it holds more than {_MOST_VALUES} values, aliases written out")
    return root


def _measured(node: Any, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Levels of a node, and its values with aliases written out. `known` has those of nodes by id."""
    if id(node) not in known:
        # for an alias of a node inside itself, which OmegaConf refuses
        known[id(node)] = (0, 0)
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in parts for part in pair]
        measured = [_measured(part, known) for part in parts]
        deepest = max((depth for depth, _ in measured), default=0)
        known[id(node)] = (1 + deepest, 1 + sum(values for _, values in measured))
    return known[id(node)]


def _too_deep() -> str:
    return f"it nests deeper than {DEEPEST} levels"


def _complaint(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return _too_deep()
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{str(error.problem).rstrip('.')} at line {error.problem_mark.line + 1}"
    return str(error).split("\n")[0]


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes every string that some YAML reader could take for something else."""


def _represent_text(dumper: _Dumper, text: str) -> Any:
    plain = _PLAIN.fullmatch(text) and yaml.safe_load(text) == text
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)
