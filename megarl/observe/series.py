"""One metric over the steps of a phase, as read back from metrics.jsonl."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Series:
    """The finite values of one metric, in the order of their steps; false where there are none.

    Attributes:
        steps: step of each value.
        values: the values.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __bool__(self) -> bool:
        return bool(self.values)


def read_series(lines: Sequence[dict[str, Any]], phase: str, key: str) -> Series:
    """Takes one metric of one phase; steps that lack it, or where it was not finite, are left out."""
    points = [
        (line["step"], line[key]) for line in lines if line["phase"] == phase and isinstance(line.get(key), int | float)
    ]
    return Series(tuple(step for step, _ in points), tuple(float(value) for _, value in points))


def keys_under(lines: Sequence[dict[str, Any]], phase: str, prefix: str) -> list[str]:
    """Keys of a phase that start with `prefix`, in the order of a step: known parts first, then by name."""
    order = ("rollout", "reward", "log_probs", "drift", "update", "sync", "step")
    found = {key for line in lines if line["phase"] == phase for key in line if key.startswith(prefix)}
    parts = {key: key.removeprefix(prefix) for key in found}
    return sorted(found, key=lambda key: (order.index(parts[key]) if parts[key] in order else len(order), key))
