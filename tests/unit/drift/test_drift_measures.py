"""All measures of drift against their definitions in exact sums."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from megarl.drift import drift_metrics
from megarl.drift.pareto import pareto_k
from tests.unit.drift.exact_drift import LARGEST, QUANTILES, exact_drift
from tests.unit.objectives.reference import ragged_mask, uniform


def close(got: dict[str, float], wanted: dict[str, float]) -> None:
    """Compares to 1e-9 relative; sums that cancel, to 1e-9 of what they are sums of."""
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        cancels = {"k1": "abs_mean", "sequence_sum_mean": "sequence_sum_abs_mean"}.get(name.rpartition("/")[2])
        whole = wanted[name.rpartition("/")[0] + "/" * ("/" in name) + cancels] if cancels else 0.0
        assert got[name] == pytest.approx(value, rel=1e-9, abs=max(1e-300, 1e-12 * whole)), name


def drifted(rows: int, width: int, scale: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """float64 log-probs of trainer and engine whose differences are within +-scale, and a ragged mask."""
    rollout = uniform(-5, 0, (rows, width), seed)
    return rollout + uniform(-scale, scale, (rows, width), seed + 1), rollout, ragged_mask(rows, width, seed)


@pytest.mark.parametrize("scale", [1e-3, 0.2, 1.0, 40.0])
@pytest.mark.parametrize(("rows", "width"), [(2, 1), (6, 17), (40, 50)])
@pytest.mark.parametrize("seed", [0, 100])
def test_every_measure_is_its_definition(scale: float, rows: int, width: int, seed: int) -> None:
    batch = drifted(rows, width, scale, seed)
    metrics = drift_metrics(*batch)
    close(metrics, exact_drift(*batch))
    assert min(value for name, value in metrics.items() if name.endswith(("k3", "chi2"))) >= 0
    assert 0 < metrics["ess_share"] <= 1
    assert 0 < metrics["token_ess_share"] <= 1


@pytest.mark.parametrize("scale", [0.01, 40.0])
def test_sequences_of_20000_tokens(scale: float) -> None:
    """Beside an empty response, one of a single token and one that begins late."""
    trainer, rollout, _ = drifted(4, 20_000, scale, 5)
    mask = torch.ones(4, 20_000, dtype=torch.bool)
    mask[1] = False
    mask[2, 1:] = False
    mask[3, :-300] = False
    close(drift_metrics(trainer, rollout, mask), exact_drift(trainer, rollout, mask))


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 90, 99, 100, 101, 300, 700, 999, 1000, 1001, 7000])
def test_quantiles_at_every_kind_of_count(count: int) -> None:
    delta = torch.arange(count, dtype=torch.float64)[None] * 1e-4
    metrics = drift_metrics(delta, torch.zeros_like(delta), torch.ones_like(delta, dtype=torch.bool))
    for name, q in QUANTILES.items():
        rank = math.ceil(Fraction(q) * count) - 1
        assert metrics[name] == delta[0, rank].item(), name


@pytest.mark.parametrize("shift", [40.0, -40.0])
def test_large_constant_shift(shift: float) -> None:
    _, rollout, mask = drifted(5, 9, 1.0, 7)
    # multiples of 2^-40, so that each difference is the shift itself
    rollout = (rollout * 2**40).round() / 2**40
    close(drift_metrics(rollout + shift, rollout, mask), exact_drift(rollout + shift, rollout, mask))


@pytest.mark.parametrize("delta", [400.0, 800.0, 1e7, -800.0, -1e7])
def test_what_no_float_holds_is_the_largest_float(delta: float) -> None:
    trainer, rollout = torch.full((2, 3, 4), -1.0, dtype=torch.float64)
    # log-probs are never positive: the one side or the other finds the token all but impossible
    (rollout if delta > 0 else trainer)[1, 2] -= abs(delta)
    metrics = drift_metrics(trainer, rollout, torch.ones(3, 4, dtype=torch.bool))
    close(metrics, exact_drift(trainer, rollout, torch.ones(3, 4, dtype=torch.bool)))
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["mult_prob_error"] == (LARGEST if abs(delta) > 710 else pytest.approx(math.exp(400) / 12))
    assert metrics["chi2"] == (LARGEST if delta > 0 else pytest.approx(1 / 12))


@pytest.mark.parametrize("junk", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_tokens_without_a_log_prob_are_left_out_and_counted(junk: float, side: int) -> None:
    trainer, rollout, mask = drifted(6, 17, 0.3, 1)
    spoilt = mask & (uniform(0, 1, mask.shape, 9) < 0.2)
    # one whole row too
    spoilt[1] = True
    (trainer, rollout)[side][spoilt] = junk
    metrics = drift_metrics(trainer, rollout, mask)
    close(metrics, exact_drift(trainer, rollout, mask))
    assert metrics["tokens_without_log_prob"] == int((spoilt & mask).sum()) > 0


def test_outside_the_mask_nothing_is_read() -> None:
    trainer, rollout, mask = drifted(6, 17, 0.3, 2)
    clean = drift_metrics(trainer, rollout, mask)
    hidden = drift_metrics(trainer.masked_fill(~mask, math.nan), rollout.masked_fill(~mask, -math.inf), mask)
    assert hidden == clean


def test_no_token_leaves_the_counts_alone() -> None:
    nothing = torch.zeros(3, 4)
    mask = torch.zeros(3, 4, dtype=torch.bool)
    counts = {"tokens": 0.0, "tokens_without_log_prob": 0.0, "responses": 0.0}
    assert drift_metrics(nothing, nothing, mask) == counts
    assert drift_metrics(nothing, nothing + math.nan, ~mask) == {
        **counts,
        "tokens": 12.0,
        "tokens_without_log_prob": 12.0,
    }


def test_no_drift() -> None:
    log_probs, mask = torch.full((3, 4), -1.5), torch.ones(3, 4, dtype=torch.bool)
    metrics = drift_metrics(log_probs, log_probs, mask)
    ones = {"ess_share", "token_ess_share", "mult_prob_error", "sequence_geometric_mean", "ppl_ratio"}
    assert all(metrics[name] == 1 for name in ones)
    counts = {"tokens", "responses", "position_0_15/tokens", "probability_10_50/tokens"}
    zeros = metrics.keys() - ones - counts - {"ppl_trainer", "ppl_rollout"}
    assert all(metrics[name] == 0 for name in zeros)
    # neither probabilities that are all the same nor weights that are have any
    assert not {"probability_pearson", "pareto_k", "token_pareto_k"} & metrics.keys()


def test_k3_of_rounding_noise_is_not_negative() -> None:
    trainer = uniform(-1, 1, (50, 200), 3) * 10 ** uniform(-18, -6, (50, 200), 4)
    metrics = [drift_metrics(row[None], torch.zeros(1, 200), torch.ones(1, 200, dtype=torch.bool)) for row in trainer]
    assert min(metric["k3"] for metric in metrics) >= 0


def test_a_few_wild_responses_among_many_show_in_k_hat_and_ess() -> None:
    trainer, rollout, mask = drifted(200, 20, 0.01, 8)
    calm = drift_metrics(trainer, rollout, mask)
    trainer[:5] += torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0])[:, None]
    wild = drift_metrics(trainer, rollout, mask)
    assert calm["pareto_k"] < 0.7 < wild["pareto_k"]
    assert wild["ess_share"] < 0.1 < 0.9 < calm["ess_share"]
    sums = torch.where(mask, trainer - rollout, 0.0).sum(dim=1)
    assert wild["pareto_k"] == pytest.approx(pareto_k(sums[mask.any(dim=1)]), rel=1e-9)
