"""Drift against a numpy implementation, written from the definitions."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from megarl.drift import drift_metrics
from tests.unit.objectives.reference import ragged_mask, uniform

SHARES = {"abs_p50": "0.5", "abs_p90": "0.9", "abs_p99": "0.99", "abs_p999": "0.999"}


def by_numpy(trainer: np.ndarray, rollout: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    """The definitions, with loops where they make it plainer."""
    kept = mask & np.isfinite(trainer) & np.isfinite(rollout)
    rows = [trainer[i][kept[i]] - rollout[i][kept[i]] for i in range(len(mask))]
    delta = np.concatenate(rows)
    absolute = np.sort(np.abs(delta))
    ratio = np.exp(delta)
    sums = np.array([row.sum() for row in rows if len(row)])
    weights = np.exp(sums - sums.max())
    # in long double: e^D - 1 - D cancels all digits but a few where D is small
    long = delta.astype(np.longdouble)
    return {
        "tokens": float(mask.sum()),
        "tokens_without_log_prob": float(mask.sum() - kept.sum()),
        "abs_mean": absolute.mean(),
        "abs_max": absolute[-1],
        **{name: absolute[math.ceil(Fraction(q) * len(absolute)) - 1] for name, q in SHARES.items()},
        "outside_band_share": float(np.mean((ratio < 0.9) | (ratio > 1.1))),
        "k1": -delta.mean(),
        "k3": float(np.mean(np.expm1(long) - long)),
        "ess_share": weights.sum() ** 2 / (weights**2).sum() / len(sums),
    }


def close(got: dict[str, float], wanted: dict[str, float]) -> None:
    """Compares to 1e-9 relative."""
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert got[name] == pytest.approx(value, rel=1e-9, abs=1e-300), name


def drifted(rows: int, width: int, scale: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """float64 log-probs of trainer and engine whose differences are within +-scale, and a ragged mask."""
    rollout = uniform(-5, 0, (rows, width), seed)
    return rollout + uniform(-scale, scale, (rows, width), seed + 1), rollout, ragged_mask(rows, width, seed)


@pytest.mark.parametrize("scale", [1e-3, 0.2, 1.0, 40.0])
@pytest.mark.parametrize(("rows", "width"), [(2, 1), (6, 17), (40, 50)])
@pytest.mark.parametrize("seed", [0, 100])
def test_every_metric_is_its_definition(scale: float, rows: int, width: int, seed: int) -> None:
    trainer, rollout, mask = drifted(rows, width, scale, seed)
    metrics = drift_metrics(trainer, rollout, mask)
    close(metrics, by_numpy(trainer.numpy(), rollout.numpy(), mask.numpy()))
    assert metrics["k3"] >= 0
    assert 0 < metrics["ess_share"] <= 1


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 90, 99, 100, 101, 300, 700, 999, 1000, 1001, 7000])
def test_quantiles_at_every_kind_of_count(count: int) -> None:
    delta = torch.arange(count, dtype=torch.float64)[None] * 1e-4
    metrics = drift_metrics(delta, torch.zeros_like(delta), torch.ones_like(delta, dtype=torch.bool))
    for name, q in SHARES.items():
        rank = math.ceil(Fraction(q) * count) - 1
        assert metrics[name] == delta[0, rank].item(), name


@pytest.mark.parametrize("shift", [40.0, -40.0])
def test_large_constant_shift(shift: float) -> None:
    _, rollout, mask = drifted(5, 9, 1.0, 7)
    trainer = rollout + shift
    close(drift_metrics(trainer, rollout, mask), by_numpy(trainer.numpy(), rollout.numpy(), mask.numpy()))


@pytest.mark.parametrize("junk", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_tokens_without_a_log_prob_are_left_out_and_counted(junk: float, side: int) -> None:
    trainer, rollout, mask = drifted(6, 17, 0.3, 1)
    spoilt = mask & (uniform(0, 1, mask.shape, 9) < 0.2)
    # one whole row too
    spoilt[1] = True
    (trainer, rollout)[side][spoilt] = junk
    metrics = drift_metrics(trainer, rollout, mask)
    close(metrics, by_numpy(trainer.numpy(), rollout.numpy(), mask.numpy()))
    assert metrics["tokens_without_log_prob"] == int((spoilt & mask).sum()) > 0


def test_outside_the_mask_nothing_is_read() -> None:
    trainer, rollout, mask = drifted(6, 17, 0.3, 2)
    clean = drift_metrics(trainer, rollout, mask)
    hidden = drift_metrics(trainer.masked_fill(~mask, math.nan), rollout.masked_fill(~mask, -math.inf), mask)
    assert hidden == clean


def test_no_token_leaves_the_counts_alone() -> None:
    nothing = torch.zeros(3, 4)
    mask = torch.zeros(3, 4, dtype=torch.bool)
    assert drift_metrics(nothing, nothing, mask) == {"tokens": 0.0, "tokens_without_log_prob": 0.0}
    assert drift_metrics(nothing, nothing + math.nan, ~mask) == {"tokens": 12.0, "tokens_without_log_prob": 12.0}


def test_no_drift() -> None:
    log_probs, mask = torch.full((3, 4), -1.5), torch.ones(3, 4, dtype=torch.bool)
    metrics = drift_metrics(log_probs, log_probs, mask)
    assert metrics["ess_share"] == 1
    assert all(metrics[name] == 0 for name in metrics.keys() - {"tokens", "ess_share"})


def test_k3_of_rounding_noise_is_not_negative() -> None:
    trainer = uniform(-1, 1, (50, 200), 3) * 10 ** uniform(-18, -6, (50, 200), 4)
    metrics = [drift_metrics(row[None], torch.zeros(1, 200), torch.ones(1, 200, dtype=torch.bool)) for row in trainer]
    assert min(metric["k3"] for metric in metrics) >= 0
