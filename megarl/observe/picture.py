"""The picture of a run: six panels in one PNG."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from megarl.observe.files import write_atomic
from megarl.observe.series import Series, keys_under, read_series

# Okabe and Ito's palette: told apart by colour-blind readers. Line styles and markers do it in grey print.
BLUE, VERMILLION, GREEN, ORANGE, PURPLE = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7"
INK, MUTED = "#222222", "#6b6b6b"
STYLES = ((BLUE, "-"), (VERMILLION, "--"), (GREEN, "-."), (PURPLE, ":"), (ORANGE, "-"))
FEW_POINTS = 12  # fewer points than this get markers, or a line of one point would not show
SMOOTHING = 5
LEGEND: dict[str, Any] = {"fontsize": 9, "frameon": False, "labelcolor": INK}

Lines = Sequence[dict[str, Any]]


def write_picture(path: Path, lines: Lines, evaluations: Mapping[str, Any], title: str) -> None:
    """Draws a run and replaces `path`, a PNG of 1950 x 1110 pixels.

    Args:
        path: the file to write.
        lines: those of metrics.jsonl.
        evaluations: "before" and "after", as evaluations.json has them; either may be missing.
        title: name of the run.
    """
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12, wspace=0.03, hspace=0.05)
    figure = Figure(figsize=(13, 7.4), dpi=150, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=14, fontweight="bold", color=INK, x=0.012, ha="left")
    panels: tuple[tuple[str, Callable[[Axes, Lines, Mapping[str, Any]], bool]], ...] = (
        ("Reward", _reward),
        ("pass@k on held-out problems", _pass_at_k),
        ("Entropy, nats a token", _entropy),
        ("KL to the reference, nats a token", _kl),
        ("Drift: |trainer minus engine log-prob|", _drift),
        ("Tokens a second", _speed),
    )
    for axes, (name, draw) in zip(figure.subplots(2, 3).flat, panels, strict=True):
        _dress(axes, name)
        if not draw(axes, lines, evaluations):
            _say_no_data(axes)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    write_atomic(path, buffer.getvalue())


def _reward(axes: Axes, lines: Lines, _: Mapping[str, Any]) -> bool:
    reward = read_series(lines, "rl", "reward/mean")
    if not reward:
        return False
    if len(reward.values) < FEW_POINTS:
        _plot(axes, reward, BLUE, "-", "step's mean")
    else:
        axes.plot(reward.steps, reward.values, color=BLUE, alpha=0.35, linewidth=1, label="step's mean")
        smooth = Series(reward.steps, _running_mean(reward.values))
        _plot(axes, smooth, BLUE, "-", f"mean of {SMOOTHING} steps")
    if min(reward.values) >= 0 and max(reward.values) <= 1:
        axes.set_ylim(-0.02, 1.03)
    _legend_below(axes)
    return True


def _pass_at_k(axes: Axes, _: Lines, evaluations: Mapping[str, Any]) -> bool:
    looks = (("before", VERMILLION, "--", "s", "white"), ("after", BLUE, "-", "o", BLUE))
    ks: set[int] = set()
    for side, color, style, marker, fill in looks:
        found = evaluations.get(side) or {}
        if not found.get("ks"):
            continue
        ks.update(found["ks"])
        greedy = found.get("greedy")
        label = f"{side} RL" if greedy is None else f"{side} RL (greedy {greedy:.2f})"
        gaps = [_gaps(found["pass_at_k"], found["low"]), _gaps(found["high"], found["pass_at_k"])]
        axes.errorbar(
            found["ks"], found["pass_at_k"], yerr=gaps, color=color, linestyle=style, linewidth=1.8, marker=marker,
            markerfacecolor=fill, markersize=5, elinewidth=1.1, capsize=3, label=label,
        )  # fmt: skip
    if not ks:
        return False
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(ks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda k, _: f"{k:.0f}"))
    axes.set_xlabel("k (bars: 95 % over problems)", fontsize=9, color=MUTED)
    axes.set_ylim(-0.02, 1.03)
    _legend_below(axes)
    return True


def _entropy(axes: Axes, lines: Lines, _: Mapping[str, Any]) -> bool:
    entropy = read_series(lines, "rl", "policy/entropy")
    if entropy:
        _plot(axes, entropy, BLUE, "-", "policy")
        axes.set_ylim(bottom=0)
    return bool(entropy)


def _kl(axes: Axes, lines: Lines, _: Mapping[str, Any]) -> bool:
    found = [
        _plot(axes, read_series(lines, "rl", f"kl/reference_{name}"), color, style, name)
        for name, (color, style) in zip(("k3", "k1"), STYLES, strict=False)
    ]
    if any(found):
        axes.axhline(0, color=MUTED, linewidth=0.8)
        _legend_on_top(axes)
    return any(found)


def _drift(axes: Axes, lines: Lines, _: Mapping[str, Any]) -> bool:
    measures = {name: read_series(lines, "rl", f"drift/abs_{name}") for name in ("max", "p99", "mean")}
    measures = {name: series for name, series in measures.items() if series}
    if not measures:
        return False
    zeros = sum(value <= 0 for series in measures.values() for value in series.values)
    if zeros == sum(len(series.values) for series in measures.values()):
        _plot(axes, measures.popitem()[1], BLUE, "-", "")
        axes.set_yticks([0])
        axes.text(0.5, 0.56, "exactly 0 at every step", transform=axes.transAxes, ha="center", color=MUTED)
        return True
    axes.set_yscale("log", nonpositive="mask")
    for (name, series), (color, style) in zip(measures.items(), STYLES, strict=False):
        _plot(axes, series, color, style, name)
    _legend_on_top(axes)
    if zeros:
        axes.set_xlabel("RL step (gaps: exactly 0)", fontsize=9, color=MUTED)
    return True


def _speed(axes: Axes, lines: Lines, _: Mapping[str, Any]) -> bool:
    keys = keys_under(lines, "rl", "tokens_per_s/")
    speeds = {key: series for key in keys if (series := read_series(lines, "rl", key))}
    for (key, series), (color, style) in zip(speeds.items(), STYLES * len(speeds), strict=False):
        _plot(axes, series, color, style, key.removeprefix("tokens_per_s/").replace("_", "-"))
    if speeds:
        peaks = [max(series.values) for series in speeds.values()]
        if max(peaks) > 10 * min(peaks) > 0:
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, 1.05 * max(peaks) or 1)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        _legend_on_top(axes)
    return bool(speeds)


def _plot(axes: Axes, series: Series, color: str, style: str, label: str) -> bool:
    marker = "o" if len(series.values) < FEW_POINTS else None
    if series:
        axes.plot(
            series.steps, series.values, color=color, linestyle=style, linewidth=1.8, marker=marker, markersize=4,
            label=label,
        )  # fmt: skip
    return bool(series)


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel("RL step", fontsize=9, color=MUTED)
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))
    axes.tick_params(labelsize=9, colors=MUTED, length=3)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")


def _say_no_data(axes: Axes) -> None:
    axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", fontsize=12, color=MUTED)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel("")


def _legend_on_top(axes: Axes) -> None:
    low, high = axes.get_ylim()
    # One more seventh of the panel: the legend's row must not lie on a curve.
    axes.set_ylim(low, high * (high / low) ** 0.15 if axes.get_yscale() == "log" else high + 0.15 * (high - low))
    axes.legend(loc="upper left", ncols=5, columnspacing=1.4, borderaxespad=0.1, **LEGEND)


def _legend_below(axes: Axes) -> None:
    axes.legend(loc="lower right", **LEGEND)


def _gaps(upper: Sequence[float], lower: Sequence[float]) -> list[float]:
    # Not below 0, where rounding puts the mean a hair outside of its interval: errorbar refuses that.
    return [max(0.0, high - low) for high, low in zip(upper, lower, strict=True)]


def _running_mean(values: Sequence[float]) -> tuple[float, ...]:
    windows = [values[max(0, end - SMOOTHING) : end] for end in range(1, len(values) + 1)]
    return tuple(sum(window) / len(window) for window in windows)
