"""What the report's figures have in common: their size and letters, their scales, and how they become SVG."""

import io
import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from megarl.observe.picture import BLUE, INK, MUTED

TEXT_PT = 9
"""12 CSS pixels where a picture is as wide as a telephone."""
MOST_LABELS = 7
"""That have room below a picture."""
NEAR = 1e-3
"""Log-ratio up to which a ratio is told by its difference from 1, for want of room."""


def new_figure(x: str, y: str) -> tuple[Figure, Axes]:
    """A figure with one pair of axes. Args: x: the label below. y: the label beside."""
    figure = Figure(figsize=(3.8, 3.1), layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.set_xlabel(x, fontsize=TEXT_PT, color=INK)
    axes.set_ylabel(y, fontsize=TEXT_PT, color=INK)
    axes.tick_params(labelsize=TEXT_PT, colors=MUTED, length=3)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def bars(axes: Axes, counts: np.ndarray[Any, Any], edges: np.ndarray[Any, Any]) -> None:
    """A histogram whose empty bins and single counts can be told apart."""
    axes.stairs(counts, edges, fill=True, color=BLUE, baseline=0.5)
    axes.set_yscale("log")
    axes.set_ylim(0.5, 2.0 * max(1, int(counts.max())))
    log_scale(axes.yaxis)


def log_scale(axis: Axis) -> None:
    """Plain numbers along a logarithmic axis, between the powers of ten too where there are few of them."""
    low, high = axis.get_view_interval()
    few = high < 100 * low
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def ratio_ticks(reach: float) -> dict[float, str]:
    """Places and labels of round ratios, 1 among them, on an axis of log-ratios from -reach to reach, nats."""
    decades = int(reach / math.log(10))
    if decades:
        step = -(-2 * decades // (MOST_LABELS - 1))
        powers = sorted({sign * power for power in range(0, decades + 1, step) for sign in (-1, 1)})
        return {power * math.log(10): f"{10.0**power:g}" for power in powers}
    if reach >= math.log(2):
        ratios = (0.2, 0.5, 1, 2, 5)
        return {math.log(ratio): f"{ratio:g}" for ratio in ratios if abs(math.log(ratio)) <= reach}
    differences = MaxNLocator(MOST_LABELS - 3).tick_values(-reach, reach)
    return {
        math.log1p(difference): f"1{difference:+g}" if 0 < abs(difference) < NEAR else f"{1 + difference:g}"
        for difference in map(float, differences)
        if math.exp(-reach) <= 1 + difference <= math.exp(reach)
    }


def as_svg(figure: Figure) -> str:
    """The figure as the text of an SVG, the same for the same figure."""
    buffer = io.BytesIO()
    FigureCanvasSVG(figure)
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return buffer.getvalue().decode("utf-8")
