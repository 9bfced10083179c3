"""The end of a run in one table, one JSON file and one picture."""

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console

from megarl.config.errors import RunFolderError
from megarl.observe.files import read_json, read_jsonl_tolerant, write_json_atomic
from megarl.observe.metrics import METRICS_FILE
from megarl.observe.series import keys_under, read_series
from megarl.observe.table import summary_table

EVALUATIONS_FILE = "evaluations.json"
SUMMARY_FILE = "summary.json"
PICTURE_FILE = "summary.png"


def write_summary(folder: Path, console: bool = True) -> dict[str, Any]:
    """Sums a run up from metrics.jsonl and evaluations.json; either may be missing or partial.

    Writes summary.json and summary.png into `folder` and returns what summary.json holds. What was not
    logged is left out of both.

    Args:
        folder: the run's folder.
        console: whether the table is printed to stdout.

    Raises:
        RunFolderError: `folder` does not exist, or one of the files is damaged.
    """
    lines, evaluations = read_run(folder, "sum up")
    summary = summarise(lines, evaluations)
    write_json_atomic(folder / SUMMARY_FILE, summary)
    # Imported here: matplotlib takes a second, and whoever only needs the numbers has no use for it.
    from megarl.observe.picture import write_picture

    write_picture(folder / PICTURE_FILE, lines, evaluations, folder.resolve().name)
    if console:
        Console().print(summary_table(summary, folder.resolve().name))
    return summary


def read_run(folder: Path, purpose: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The lines of metrics.jsonl, and evaluations.json; empty where the file is not there.

    Args:
        folder: the run's folder.
        purpose: what cannot be done without it, for the error.

    Raises:
        RunFolderError: `folder` does not exist, or one of the files is damaged.
    """
    if not os.path.isdir(folder):
        raise RunFolderError(f"The run folder {folder} does not exist, so there is nothing to {purpose}: name another.")
    return read_jsonl_tolerant(folder / METRICS_FILE), read_json(folder / EVALUATIONS_FILE)


def summarise(lines: Sequence[dict[str, Any]], evaluations: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a run, without any file.

    Args:
        lines: those of metrics.jsonl.
        evaluations: "before" and "after", as evaluations.json has them.

    Returns:
        A JSON tree. Under "rl" and "sft", each only where it was logged: "steps"; "first", "last",
        "last_5_mean", "mean" and "max" of each metric; "tokens_per_s", the median over steps, and "seconds",
        the total, of each part of a step; "nonfinite", the steps at which a metric was NaN or infinite.
    """
    summary: dict[str, Any] = {}
    for phase in ("sft", "rl"):
        if any(line["phase"] == phase for line in lines):
            summary[phase] = _phase(lines, phase)
    if evaluations:
        summary["evaluations"] = evaluations
    return summary


def _phase(lines: Sequence[dict[str, Any]], phase: str) -> dict[str, Any]:
    own = [line for line in lines if line["phase"] == phase]
    plain = sorted({key for line in own for key in line if not key.startswith(("seconds/", "tokens_per_s/"))})
    metrics = {key: _statistics(own, phase, key) for key in plain if key not in ("phase", "step", "nonfinite")}
    speeds = {key: read_series(own, phase, key).values for key in keys_under(own, phase, "tokens_per_s/")}
    times = {key: read_series(own, phase, key).values for key in keys_under(own, phase, "seconds/")}
    nonfinite: dict[str, int] = {}
    for line in own:
        for key in line.get("nonfinite", []):
            nonfinite[key] = nonfinite.get(key, 0) + 1
    return {
        "steps": len(own),
        "metrics": {key: value for key, value in metrics.items() if value},
        "tokens_per_s": {key.removeprefix("tokens_per_s/"): median(v) for key, v in speeds.items() if v},
        "seconds": {key.removeprefix("seconds/"): sum(v) for key, v in times.items() if v},
        "nonfinite": nonfinite,
    }


def _statistics(lines: Sequence[dict[str, Any]], phase: str, key: str) -> dict[str, float]:
    values = read_series(lines, phase, key).values
    if not values:
        return {}
    return {
        "first": values[0],
        "last": values[-1],
        "last_5_mean": fmean(values[-5:]),
        "mean": fmean(values),
        "max": max(values),
    }
