"""A source's settings: from the free mapping `data.options` to a typed dataclass."""

from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from megarl.config.errors import RecipeError
from megarl.config.names import nearest
from megarl.config.refusal import refusal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    OptionsT = TypeVar("OptionsT", bound=DataclassInstance)

Range = tuple[int, int]


def parse_options(kind: "type[OptionsT]", options: Mapping[str, Any], source: str) -> "OptionsT":
    """Builds the options dataclass `kind`, whose fields are int, float or `Range` (inclusive, lower bound first).

    Args:
        kind: dataclass whose fields are declared with `megarl.config.fields.key`.
        options: `data.options` of the recipe.
        source: name of the source, for messages.

    Raises:
        RecipeError: an option is unknown, of another type or out of its range.
    """
    known = {field.name: field for field in fields(kind)}
    for name, value in options.items():
        if name not in known:
            raise unknown_option(name, value, known, source)
    return kind(**{name: _checked(known[name], value) for name, value in options.items()})


def unknown_option(name: str, value: Any, known: Iterable[str], owner: str) -> RecipeError:
    """The error for an option that `owner` does not have, with the nearest one that it has."""
    names = sorted(known)
    guess = nearest(str(name), names)
    # who changes a base recipe's source inherits the options of the old one
    inherited = "set data.options=null to drop what a base recipe gave"
    fix = f"did you mean {guess}?" if guess else f"use one of {', '.join(names)}, or {inherited}"
    return refusal(f"data.options.{name}", value, f"is no option of {owner}", fix)


def _checked(field: "Field[Any]", value: Any) -> Any:
    path = f"data.options.{field.name}"
    if field.type is int:
        if not _is_int(value):
            raise refusal(path, value, "is not a whole number", "give one")
        return _within(path, field, value, value)
    if field.type is float:
        if not _is_int(value) and not isinstance(value, float):
            raise refusal(path, value, "is not a number", "give one")
        return float(_within(path, field, value, value))
    if not (isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_int, value)) and value[0] <= value[1]):
        raise refusal(path, value, "is not a range", "give two whole numbers, the smaller one first")
    return (_within(path, field, value[0], value), _within(path, field, value[1], value))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _within(path: str, field: "Field[Any]", number: Any, value: Any) -> Any:
    low, high = field.metadata["low"], field.metadata["high"]
    # written so that NaN, which compares false with everything, is refused too
    if low is not None and not number >= low:
        raise refusal(path, value, f"is below {low}", f"give at least {low}")
    if high is not None and not number <= high:
        raise refusal(path, value, f"is above {high}", f"give at most {high}")
    return number
