"""The summary as a table for the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

Metrics = Mapping[str, Mapping[str, float]]


def summary_table(summary: Mapping[str, Any], name: str) -> Table:
    """Lays out what `summarise` returns. Rows whose numbers are missing are left out, and the caption says why.

    Args:
        summary: the tree of summary.json.
        name: name of the run, for the title.
    """
    table = Table(title=Text(name, "bold"), title_justify="left", caption_justify="left", box=SIMPLE_HEAD)
    table.add_column("measure", no_wrap=True)
    table.add_column("start", justify="right", no_wrap=True)
    table.add_column("end", justify="right", no_wrap=True)
    table.add_column("detail")
    rl, sft = summary.get("rl", {}), summary.get("sft", {})
    evaluations = summary.get("evaluations", {})
    _add_change(table, "SFT loss", sft.get("metrics", {}), "sft/loss")
    _add_change(table, "reward", rl.get("metrics", {}), "reward/mean")
    _add_evaluations(table, evaluations)
    _add_change(table, "entropy", rl.get("metrics", {}), "policy/entropy", " nats a token")
    _add_change(table, "KL to reference", rl.get("metrics", {}), "kl/reference_k3", " nats a token")
    _add_drift(table, rl.get("metrics", {}))
    for phase, label in ((sft, "SFT"), (rl, "RL")):
        _add_parts(table, f"{label} tokens/s", phase.get("tokens_per_s", {}), "median over steps")
        _add_parts(table, f"{label} seconds", phase.get("seconds", {}), "total")
        _add_nonfinite(table, label, phase.get("nonfinite", {}))
    missing = [text for part, text in ((rl, "no RL step"), (evaluations, "no evaluation")) if not part]
    notes = [f"The run's folder holds {' and '.join(missing)}."] if missing else []
    if evaluations:
        notes.append("pass@k: [low, high] is the 95 % interval over problems.")
    table.caption = Text(" ".join(notes))  # as text: rich would take [low, high] for markup
    return table


def _add_change(table: Table, label: str, metrics: Metrics, key: str, unit: str = "") -> None:
    if key in metrics:
        values = metrics[key]
        detail = f"last-5 mean {format_number(values['last_5_mean'])}{unit}"
        table.add_row(label, format_number(values["first"]), format_number(values["last"]), detail)


def _add_evaluations(table: Table, evaluations: Mapping[str, Any]) -> None:
    sides = [evaluations.get("before") or {}, evaluations.get("after") or {}]
    curves = [
        {k: (p, low, high) for k, p, low, high in zip(*(side.get(name, []) for name in _CURVE), strict=True)}
        for side in sides
    ]
    for k in sorted({k for curve in curves for k in curve}):
        points = [curve.get(k) for curve in curves]
        intervals = ["" if p is None else f"[{p[1]:.3f}, {p[2]:.3f}]" for p in points]
        cells = ["" if p is None else f"{p[0]:.3f}" for p in points]
        table.add_row(f"pass@{k}", *cells, ", ".join(text for text in intervals if text))
    for key, label, form in (("greedy", "greedy accuracy", ".3f"), ("mean_tokens", "response tokens", ".1f")):
        if any(side.get(key) is not None for side in sides):
            cells = ["" if side.get(key) is None else format(side[key], form) for side in sides]
            table.add_row(label, *cells, _evaluated(sides))


_CURVE = ("ks", "pass_at_k", "low", "high")


def _evaluated(sides: list[Mapping[str, Any]]) -> str:
    said = next((side for side in reversed(sides) if "problems" in side and "samples" in side), None)
    return "" if said is None else f"{said['problems']} problems, {said['samples']} samples each"


def _add_drift(table: Table, metrics: Metrics) -> None:
    if "drift/abs_mean" not in metrics:
        return
    mean = metrics["drift/abs_mean"]
    detail = f"run's mean {format_number(mean['mean'])}"
    if "drift/abs_max" in metrics:
        detail += f", max {format_number(metrics['drift/abs_max']['max'])}"
    table.add_row("drift, |Δ log-prob|", format_number(mean["first"]), format_number(mean["last"]), detail)


def _add_parts(table: Table, label: str, parts: Mapping[str, float], note: str) -> None:
    if parts:
        cells = [f"{name.replace('_', '-')} {_amount(value)}" for name, value in parts.items()]
        table.add_row(label, "", "", f"{note}: {', '.join(cells)}")


def _add_nonfinite(table: Table, label: str, counts: Mapping[str, int]) -> None:
    if counts:
        cells = [f"{key} at {count} step{'s' if count > 1 else ''}" for key, count in counts.items()]
        table.add_row(f"{label} NaN or infinite", "", "", ", ".join(cells), style="bold red")


def _amount(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def format_number(value: float) -> str:
    """Three or four digits, as a power of ten where it is very small or large."""
    if value == 0 or 0.001 <= abs(value) < 10:
        return f"{value:.3f}"
    if 10 <= abs(value) < 1000:
        return f"{value:.1f}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.1e}"
