"""The one way to declare a recipe key: a default, its meaning and its range."""

from dataclasses import MISSING, field
from typing import Any

LONGEST_S = 10**9
"""Seconds, 31 years: beyond them the clocks of Python's threads, of gloo or of SLURM overflow."""


def key(
    default: Any = MISSING,
    doc: str = "",
    *,
    factory: Any = MISSING,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Declares a dataclass field that the recipe checker and the reference page both read.

    Args:
        default: value where the recipe is silent; omit it (and `factory`) to make the key required.
        doc: one sentence on the meaning, with its unit.
        factory: makes the default where it is mutable.
        low: smallest allowed value, inclusive.
        high: largest allowed value, inclusive.
        above: bound that the value must exceed.
        choices: the allowed strings.
    """
    metadata = {"doc": doc, "low": low, "high": high, "above": above, "choices": choices}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)
