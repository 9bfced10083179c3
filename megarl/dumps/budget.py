"""The file of a drift budget: what `megarl drift budget` writes and `megarl drift report` shows."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from megarl.drift.budget import Budget, Part
from megarl.dumps.errors import DumpError
from megarl.dumps.folder import DUMPS_FOLDER
from megarl.observe.files import write_json_atomic

BUDGET_FILE = "drift_budget.json"
"""Its name beside a dump, where the report looks for it."""
_VERSION = 1


def write_budget(path: Path, budget: Budget) -> None:
    """Writes one as JSON, with null for what is not known.

    Raises:
        DumpError: it cannot be written.
    """
    told = {"megarl_drift_budget": _VERSION, **asdict(budget)}
    try:
        write_json_atomic(path, _nan_as_null(told))
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
    except ValueError as error:
        raise DumpError(f"{path} is no JSON ({error}); name a file of megarl drift budget.") from error
    if not isinstance(told, dict) or told.get("megarl_drift_budget") != _VERSION:
        raise DumpError(f"{path} is no drift budget of version {_VERSION}; name a file of megarl drift budget.")
    try:
        return Budget(
            _part(told["total"]),
            tuple(map(_part, told["parts"])),
            tuple(map(_part, told["floors"])),
            tuple(map(str, told["absent"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DumpError(f"{path} is damaged ({error!r}); write it again with megarl drift budget.") from error


def budget_beside(dump: Path) -> Path | None:
    """Where a budget lies beside a dump: in the folder of the dumps or in the run's; None where there is none.

    What is above any other folder belongs to other runs.
    """
    # absolute, for a dump that is named from inside its folder
    folder = (dump if dump.is_dir() else dump.parent).absolute()
    run = folder.parent if folder.name == DUMPS_FOLDER else folder
    places = (folder / BUDGET_FILE, run / DUMPS_FOLDER / BUDGET_FILE, run / BUDGET_FILE)
    return next((path for path in places if path.is_file()), None)


def _part(told: dict[str, Any]) -> Part:
    def number(name: str) -> float:
        return math.nan if told[name] is None else float(told[name])

    return Part(
        name=str(told["name"]),
        switched=str(told["switched"]),
        tokens=int(told["tokens"]),
        abs_mean=number("abs_mean"),
        abs_mean_error=number("abs_mean_error"),
        k3=number("k3"),
        k3_error=number("k3_error"),
    )


def _nan_as_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _nan_as_null(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_nan_as_null(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value
