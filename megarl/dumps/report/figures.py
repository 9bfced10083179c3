"""The report's figures, each an SVG that is small enough to be read on a telephone.

matplotlib draws them, which a run needs anyway. Plotly's script alone would be 4 MB a page, and a page without scripts
can forbid them all.
"""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from torch import Tensor

from megarl.drift.log_ratios import LogRatios
from megarl.drift.tokens import RATIO_BAND
from megarl.dumps.kept import Kept
from megarl.dumps.report.drawing import MOST_LABELS, TEXT_PT, as_svg, bars, log_scale, new_figure, ratio_ticks
from megarl.observe.picture import BLUE, GREEN, INK, MUTED, ORANGE, VERMILLION

CELL_COLORS = "viridis_r"
CELLS = 90
"""Of the scatter's grid, along each side."""
BINS = 81
POSITION_BINS = 24
FEW_CELLS = 200
"""Of the scatter's grid; where no more are filled they are drawn as dots, since one cell is 3 pixels wide."""
LOG_FROM = 20.0
"""Times that the largest bar exceeds the smallest before a scale is logarithmic."""


def scatter(ratios: LogRatios) -> str:
    """Log-probs by engine and trainer, as a density: points would hide each other."""
    figure, axes = new_figure("engine's log-prob, nats", "trainer's log-prob, nats")
    trainer_N, rollout_N = ratios.trainer_N.numpy(), ratios.rollout_N.numpy()
    low = min(float(trainer_N.min()), float(rollout_N.min()), -1e-6)
    edges = np.linspace(low, max(0.0, float(trainer_N.max()), float(rollout_N.max())), CELLS + 1)
    counts, _, _ = np.histogram2d(rollout_N, trainer_N, bins=(edges, edges))
    norm = LogNorm(vmin=1, vmax=max(10.0, float(counts.max())))
    axes.plot([edges[0], edges[-1]], [edges[0], edges[-1]], color=VERMILLION, linewidth=0.8, linestyle="--", zorder=1)
    filled = counts.nonzero()
    image: ScalarMappable
    if len(filled[0]) <= FEW_CELLS:
        centres = (edges[:-1] + edges[1:]) / 2
        # the fullest last, on top
        order = counts[filled].argsort()
        x, y = (centres[places[order]] for places in filled)
        image = axes.scatter(x, y, c=counts[filled][order], s=14, cmap=CELL_COLORS, norm=norm, zorder=2)
    else:
        shown = np.ma.masked_equal(counts.T, 0)
        extent = (edges[0], edges[-1], edges[0], edges[-1])
        image = axes.imshow(shown, origin="lower", extent=extent, cmap=CELL_COLORS, norm=norm, aspect="auto", zorder=2)
    axes.margins(0.03)
    bar = figure.colorbar(image, ax=axes)
    log_scale(bar.ax.yaxis)
    bar.ax.tick_params(labelsize=TEXT_PT, colors=MUTED)
    bar.set_label("tokens", fontsize=TEXT_PT, color=MUTED)
    return as_svg(figure)


def by_position(ratios: LogRatios) -> str:
    """Mean and largest |Delta| against the position in the response."""
    figure, axes = new_figure("position in the response, tokens", "|Delta|, nats")
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
    log_scale(axes.xaxis)
    if (mean[there] > 0).any():
        axes.set_yscale("log", nonpositive="mask")
        log_scale(axes.yaxis)
        if (mean[there] == 0).any():
            axes.set_xlabel("position in the response, tokens (gaps: exactly 0)")
    else:
        axes.set_yticks([0])
    figure.legend(loc="outside upper right", ncols=2, fontsize=TEXT_PT, frameon=False, labelcolor=INK)
    return as_svg(figure)


def ratio_histogram(ratios: LogRatios) -> str:
    """Ratios trainer / engine of the tokens; what lies beyond all but 1 in 1000 is counted in the outermost bars."""
    figure, axes = new_figure("ratio trainer / engine", "tokens")
    log_ratio_N = ratios.log_ratio_N
    reach = _quantile(log_ratio_N.abs(), 0.999) * 1.2 or 1e-6
    # beyond e^30 a ratio is no number to read
    reach = min(reach, 30.0)
    counts, edges = np.histogram(log_ratio_N.clamp(-reach, reach).numpy(), bins=np.linspace(-reach, reach, BINS + 1))
    bars(axes, counts, edges)
    band = [math.log(bound) for bound in RATIO_BAND]
    if reach > band[1]:
        axes.axvspan(band[0], band[1], color=GREEN, alpha=0.15, linewidth=0)
    ticks = ratio_ticks(reach)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xlim(-1.05 * reach, 1.05 * reach)
    return as_svg(figure)


def response_weights(ratios: LogRatios) -> str:
    """Log-weights of the responses: the sums of their Delta."""
    figure, axes = new_figure("sum of Delta over a response, nats", "responses")
    bars(axes, *np.histogram(ratios.sum_R.numpy(), bins=min(BINS, max(5, len(ratios.sum_R) // 4))))
    axes.axvline(0, color=VERMILLION, linewidth=0.8, linestyle="--")
    return as_svg(figure)


def by_probability(ratios: LogRatios) -> str:
    """Mean |Delta| against the probability that the engine gave the token."""
    figure, axes = new_figure("engine's probability", "mean |Delta|, nats")
    absolute_N, rollout_N = ratios.log_ratio_N.abs().numpy(), ratios.rollout_N.numpy()
    # in decades below 1, since most that happens there happens to unlikely tokens
    edges = np.log(10.0) * np.arange(math.floor(max(rollout_N.min() / math.log(10), -12)), 1)
    bin_N = np.clip(np.searchsorted(edges, rollout_N, side="right") - 1, 0, max(0, len(edges) - 2))
    tokens = np.bincount(bin_N, minlength=max(1, len(edges) - 1))
    mean = np.bincount(bin_N, absolute_N, minlength=len(tokens)) / np.maximum(tokens, 1)
    sampled = tokens > 0
    places = np.arange(len(tokens))
    if (mean > 0).any():
        axes.bar(places[sampled], mean[sampled], width=0.8, color=BLUE)
        if mean.max() > LOG_FROM * mean[mean > 0].min():
            axes.set_yscale("log")
            log_scale(axes.yaxis)
    else:
        axes.plot(places[sampled], mean[sampled], color=BLUE, marker="o", markersize=5, linestyle="none")
        axes.set_yticks([0])
    first = round(edges[0] / math.log(10))
    borders = range(0, len(tokens) + 1, -(-len(tokens) // (MOST_LABELS - 1)))
    axes.set_xticks([border - 0.5 for border in borders], [f"{10.0 ** (first + border):g}" for border in borders])
    axes.set_xlim(-0.6, len(tokens) - 0.4)
    return as_svg(figure)


def kept(rows: Sequence[Kept]) -> str:
    """Tokens and responses that each correction would keep."""
    figure, axes = new_figure("kept, %", "")
    places = np.arange(len(rows))[::-1]
    axes.barh(places + 0.2, [100 * row.token_share for row in rows], height=0.36, color=BLUE, label="tokens")
    axes.barh(places - 0.2, [100 * row.response_share for row in rows], height=0.36, color=ORANGE, label="responses")
    for share, place in [(row.token_share, at) for row, at in zip(rows, places, strict=True)]:
        if share == 0:
            axes.text(1, place, "nothing", fontsize=TEXT_PT, color=MUTED, va="center")
    axes.set_yticks(places, [row.candidate.short for row in rows])
    axes.set_xlim(0, 100)
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper right", ncols=2, fontsize=TEXT_PT, frameon=False, labelcolor=INK)
    return as_svg(figure)


def _quantile(values_N: Tensor, q: float) -> float:
    return float(values_N.kthvalue(max(1, math.ceil(q * len(values_N)))).values)
