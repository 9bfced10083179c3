"""The file of a drift budget: what `megarl drift budget` writes and `megarl drift report` shows."""

import json
import math
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from megarl.config.refusal import in_words, shortened
from megarl.drift.budget import Budget, Part
from megarl.dumps.errors import DumpError
from megarl.dumps.folder import DUMPS_FOLDER
from megarl.observe.files import nonfinite_as_null, write_json_atomic

BUDGET_FILE = "drift_budget.json"
"""Its name beside a dump, where the report looks for it."""
_VERSION = 1
_MOST_TOKENS = 2**63


def write_budget(path: Path, budget: Budget) -> None:
    """Writes one as JSON, with null for what is not known or beyond fp64.

    Raises:
        DumpError: it cannot be written.
    """
    told = {"megarl_drift_budget": _VERSION, **asdict(budget)}
    try:
        write_json_atomic(path, nonfinite_as_null(told))
    except OSError as error:
        raise DumpError(f"{path} cannot be written ({error.strerror}); name another file.") from error


def read_budget(path: Path) -> Budget:
    """Reads one.

    Raises:
        DumpError: it is not there, or no such file.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DumpError(f"{path} cannot be read ({error.strerror}); name a file of megarl drift budget.") from error
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{path} is no JSON ({error}); name a file of megarl drift budget.") from error
    if not isinstance(told, dict) or told.get("megarl_drift_budget") != _VERSION:
        raise DumpError(f"{path} is no drift budget of version {_VERSION}; name a file of megarl drift budget.")
    try:
        return Budget(
            _part(told["total"]),
            tuple(map(_part, _list(told, "parts"))),
            tuple(map(_part, _list(told, "floors"))),
            tuple(_text(line, "a line of absent") for line in _list(told, "absent")),
        )
    except KeyError as error:
        raise DumpError(f"{path} is damaged (it has no {error}); write it again with megarl drift budget.") from error
    except ValueError as error:
        raise DumpError(f"{path} is damaged ({error}); write it again with megarl drift budget.") from error


def budget_beside(dump: Path) -> Path | None:
    """Where a budget lies beside a dump: in the folder of the dumps or in the run's; None where there is none.

    What is above any other folder belongs to other runs.
    """
    # absolute, for a dump that is named from inside its folder
    folder = (dump if os.path.isdir(dump) else dump.parent).absolute()
    run = folder.parent if folder.name == DUMPS_FOLDER else folder
    places = (folder / BUDGET_FILE, run / DUMPS_FOLDER / BUDGET_FILE, run / BUDGET_FILE)
    return next((path for path in places if os.path.isfile(path)), None)


def _part(told: Any) -> Part:
    if not isinstance(told, dict):
        raise ValueError(f"a part is {in_words(told)} and no mapping")
    if type(tokens := told["tokens"]) is not int or not 0 < tokens <= _MOST_TOKENS:
        raise ValueError(f"tokens is {in_words(tokens)} and no number of them")
    return Part(
        name=_text(told["name"], "name"),
        switched=_text(told["switched"], "switched"),
        tokens=tokens,
        **{name: _size(told[name], name) for name in ("abs_mean", "abs_mean_error", "k3", "k3_error")},
    )


def _list(told: dict[str, Any], name: str) -> list[Any]:
    if not isinstance(held := told[name], list):
        raise ValueError(f"{name} is {in_words(held)} and no list")
    return held


def _text(value: Any, name: str) -> str:
    """A line for people: a terminal obeys characters that are not printable."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(
            f"{name} is {ascii(shortened(value)) if isinstance(value, str) else in_words(value)} and no text"
        )
    return value


def _size(value: Any, name: str) -> float:
    """NaN for null; what is measured here is never below 0."""
    if value is None:
        return math.nan
    if type(value) not in (int, float) or value < 0 or value > sys.float_info.max:
        raise ValueError(f"{name} is {in_words(value)} and no size in nats")
    return float(value)
