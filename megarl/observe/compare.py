"""Several runs side by side, such as one recipe with two engines."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from megarl.config.errors import RunFolderError
from megarl.observe.summary import read_run, summarise
from megarl.observe.table import format_number


def compare(folders: Sequence[Path]) -> None:
    """Prints reward, pass@k, drift and speed of finished or running runs, a column a run.

    Raises:
        RunFolderError: a folder does not exist or holds no step of reinforcement learning, or its files are damaged.
    """
    Console().print(comparison([(str(folder), _summary(folder)) for folder in folders]))


def comparison(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """The table, from what `summarise` returns for each run, with its name. What no run has is left out."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("measure", no_wrap=True)
    for name, _ in summaries:
        # as text: rich would take the [x] of a path for markup
        table.add_column(Text(name), justify="right")
    for label, read in _rows([summary for _, summary in summaries]):
        values = [read(summary) for _, summary in summaries]
        if any(value is not None for value in values):
            table.add_row(label, *("" if value is None else _shown(value) for value in values))
    return table


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else format_number(value)


Read = Callable[[Mapping[str, Any]], float | None]


def _rows(summaries: Sequence[Mapping[str, Any]]) -> list[tuple[str, Read]]:
    speeds = {part for summary in summaries for part in summary["rl"]["tokens_per_s"]}
    seconds = {part for summary in summaries for part in summary["rl"]["seconds"]}
    ks = {k for summary in summaries for side in summary.get("evaluations", {}).values() for k in side["ks"]}
    return [
        ("RL steps", lambda summary: int(summary["rl"]["steps"])),
        ("reward, first step", _metric("reward/mean", "first")),
        ("reward, mean of the last 5 steps", _metric("reward/mean", "last_5_mean")),
        *((f"pass@{k}, {when} RL", _pass_at(k, when)) for k in sorted(ks) for when in ("before", "after")),
        ("drift, mean |Δ log-prob|, nats", _metric("drift/abs_mean", "mean")),
        ("drift, max |Δ log-prob|, nats", _metric("drift/abs_max", "max")),
        *((f"tokens/s, {part.replace('_', '-')}", _part("tokens_per_s", part)) for part in sorted(speeds)),
        *((f"seconds, {part.replace('_', '-')}", _part("seconds", part)) for part in sorted(seconds)),
    ]


def _metric(key: str, statistic: str) -> Read:
    return lambda summary: summary["rl"]["metrics"].get(key, {}).get(statistic)


def _part(kind: str, part: str) -> Read:
    return lambda summary: summary["rl"][kind].get(part)


def _pass_at(k: int, when: str) -> Read:
    def read(summary: Mapping[str, Any]) -> float | None:
        side = summary.get("evaluations", {}).get(when)
        return side["pass_at_k"][side["ks"].index(k)] if side and k in side["ks"] else None

    return read


def _summary(folder: Path) -> dict[str, Any]:
    summary = summarise(*read_run(folder, "compare"))
    if "rl" not in summary:
        raise RunFolderError(f"The run folder {folder} holds no step of reinforcement learning: name another.")
    return summary
