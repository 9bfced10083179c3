"""The report's figures, each an SVG that is small enough to be read on a telephone.

matplotlib draws them, which a run needs anyway. Plotly's script alone would be 4 MB a page, and a page without scripts
can forbid them all.
"""

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from megarl.drift.log_ratios import LogRatios
from megarl.drift.tokens import RATIO_BAND
from megarl.dumps.kept import Kept
from megarl.observe.picture import BLUE, GREEN, INK, MUTED, ORANGE, VERMILLION

CELLS = 90
"""Of the scatter's grid, along each side."""
BINS = 81
POSITION_BINS = 24


def scatter(ratios: LogRatios) -> str:
    """Log-probs by engine and trainer, as a density: points would hide each other."""
    figure, axes = _figure("engine's log-prob, nats", "trainer's log-prob, nats")
    trainer_N, rollout_N = ratios.trainer_N.numpy(), ratios.rollout_N.numpy()
    low = min(float(trainer_N.min()), float(rollout_N.min()), -1e-6)
    edges = np.linspace(low, max(0.0, float(trainer_N.max()), float(rollout_N.max())), CELLS + 1)
    counts, _, _ = np.histogram2d(rollout_N, trainer_N, bins=(edges, edges))
    shown = np.ma.masked_equal(counts.T, 0)
    norm = LogNorm(vmin=1, vmax=max(2.0, float(counts.max())))
    extent = (edges[0], edges[-1], edges[0], edges[-1])
    image = axes.imshow(shown, origin="lower", extent=extent, cmap="viridis_r", norm=norm, aspect="auto")
    axes.plot([edges[0], edges[-1]], [edges[0], edges[-1]], color=VERMILLION, linewidth=0.8, linestyle="--")
    bar = figure.colorbar(image, ax=axes)
    bar.ax.tick_params(labelsize=8, colors=MUTED)
    bar.set_label("tokens", fontsize=9, color=MUTED)
    return _svg(figure)


def by_position(ratios: LogRatios) -> str:
    """Mean and largest |Delta| against the position in the response."""
    figure, axes = _figure("position in the response, tokens", "|Delta|, nats")
    absolute_N, position_N = ratios.log_ratio_N.abs().numpy(), ratios.position_N.numpy()
    edges = np.unique(np.geomspace(1, int(position_N.max()) + 2, POSITION_BINS + 1).astype(np.int64)) - 1
    bin_N = np.searchsorted(edges, position_N, side="right") - 1
    tokens = np.bincount(bin_N, minlength=len(edges))
    largest = np.zeros(len(tokens))
    np.maximum.at(largest, bin_N, absolute_N)
    mean = np.bincount(bin_N, absolute_N, minlength=len(tokens)) / np.maximum(tokens, 1)
    there = tokens > 0
    x = (edges + 1)[there]
    axes.plot(x, mean[there], color=BLUE, marker="o", markersize=3, linewidth=1.4, label="mean")
    axes.plot(x, largest[there], color=VERMILLION, marker="^", markersize=3, linewidth=1, ls="--", label="largest")
    axes.set_xscale("log")
    if (mean[there] > 0).any():
        axes.set_yscale("log", nonpositive="mask")
    axes.legend(loc="upper left", fontsize=8, frameon=False, labelcolor=INK)
    return _svg(figure)


def ratio_histogram(ratios: LogRatios) -> str:
    """Ratios trainer / engine of the tokens; what lies beyond all but 1 in 1000 is counted in the outermost bars."""
    figure, axes = _figure("ratio trainer / engine", "tokens")
    log_ratio_N = ratios.log_ratio_N
    reach = _quantile(log_ratio_N.abs(), 0.999) * 1.2 or 1e-6
    # beyond e^30 a ratio is no number to read
    reach = min(reach, 30.0)
    counts, edges = np.histogram(log_ratio_N.clamp(-reach, reach).numpy(), bins=np.linspace(-reach, reach, BINS + 1))
    _bars(axes, counts, edges)
    band = [math.log(bound) for bound in RATIO_BAND]
    if reach > band[1]:
        axes.axvspan(band[0], band[1], color=GREEN, alpha=0.15, linewidth=0)
    ticks = np.linspace(-reach, reach, 5)
    # a small reach is told as a difference from 1: no label has room for its digits otherwise
    near = reach < 0.01
    labels = [f"1{tick:+.0e}" if near and tick else f"{math.exp(tick):.3g}" for tick in ticks]
    axes.set_xticks(ticks, labels)
    return _svg(figure)


def response_weights(ratios: LogRatios) -> str:
    """Log-weights of the responses: the sums of their Delta."""
    figure, axes = _figure("sum of Delta over a response, nats", "responses")
    _bars(axes, *np.histogram(ratios.sum_R.numpy(), bins=min(BINS, max(5, len(ratios.sum_R) // 4))))
    axes.axvline(0, color=VERMILLION, linewidth=0.8, linestyle="--")
    return _svg(figure)


def by_probability(ratios: LogRatios) -> str:
    """Mean |Delta| against the probability that the engine gave the token."""
    figure, axes = _figure("engine's probability", "mean |Delta|, nats")
    absolute_N, rollout_N = ratios.log_ratio_N.abs().numpy(), ratios.rollout_N.numpy()
    # in decades below 1, since most that happens there happens to unlikely tokens
    edges = np.log(10.0) * np.arange(math.floor(max(rollout_N.min() / math.log(10), -12)), 1)
    bin_N = np.clip(np.searchsorted(edges, rollout_N, side="right") - 1, 0, max(0, len(edges) - 2))
    tokens = np.bincount(bin_N, minlength=max(1, len(edges) - 1))
    mean = np.bincount(bin_N, absolute_N, minlength=len(tokens)) / np.maximum(tokens, 1)
    there = mean > 0
    axes.bar(np.arange(len(tokens))[there], mean[there], width=0.8, color=BLUE)
    first = round(edges[0] / math.log(10))
    places = np.arange(len(tokens))
    axes.set_xticks(places - 0.5, [f"1e{first + place:d}" for place in places])
    if there.any():
        axes.set_yscale("log")
    return _svg(figure)


def kept(rows: Sequence[Kept]) -> str:
    """Tokens and responses that each correction would keep."""
    figure, axes = _figure("kept, %", "")
    places = np.arange(len(rows))[::-1]
    axes.barh(places + 0.2, [100 * row.token_share for row in rows], height=0.36, color=BLUE, label="tokens")
    axes.barh(places - 0.2, [100 * row.response_share for row in rows], height=0.36, color=ORANGE, label="responses")
    axes.set_yticks(places, [row.candidate.short for row in rows])
    axes.set_xlim(0, 100)
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper right", ncols=2, fontsize=8, frameon=False, labelcolor=INK)
    return _svg(figure)


def _bars(axes: Axes, counts: np.ndarray[Any, Any], edges: np.ndarray[Any, Any]) -> None:
    """A histogram whose empty bins and single counts can be told apart."""
    axes.stairs(counts, edges, fill=True, color=BLUE, baseline=0.5)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)


def _figure(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.3, 3.3), layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, colors=MUTED, length=3)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _quantile(values_N: Tensor, q: float) -> float:
    return float(values_N.kthvalue(max(1, math.ceil(q * len(values_N)))).values)


def _svg(figure: Figure) -> str:
    buffer = io.BytesIO()
    FigureCanvasSVG(figure)
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return buffer.getvalue().decode("utf-8")
