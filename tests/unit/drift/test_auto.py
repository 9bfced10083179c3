"""The rule that picks a correction, over batches with a drift that was planted."""

import pytest
import torch
from torch import Tensor

from megarl.drift import drift_metrics
from megarl.drift.auto import CALM_STEPS, Level, asked_level, choose
from tests.unit.objectives.reference import uniform

ROWS, WIDTH = 64, 60


def normal(seed: int) -> Tensor:
    """Standard normal numbers, by Box and Muller."""
    radius = (-2 * uniform(0, 1, (ROWS, WIDTH), seed).log()).sqrt()
    return radius * torch.cos(2 * torch.pi * uniform(0, 1, (ROWS, WIDTH), seed + 1))


def measured(delta: Tensor) -> dict[str, float]:
    """Of engine log-probs that are right and trainer log-probs that are off by delta."""
    rollout = uniform(-3, -0.5, (ROWS, WIDTH), 9)
    return drift_metrics(rollout + delta, rollout, torch.ones(ROWS, WIDTH, dtype=torch.bool))


def with_tail(share: float, size: float) -> Tensor:
    """Noise of 2 %, and a share of tokens that are off by exponentially distributed nats of that mean."""
    hit = uniform(0, 1, (ROWS, WIDTH), 30) < share
    return 0.02 * normal(31) + torch.where(hit, -size * uniform(0, 1, (ROWS, WIDTH), 32).log(), 0.0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("scale", "wanted"),
    [(0.0, Level.NONE), (1e-7, Level.NONE), (3e-3, Level.NONE), (0.02, Level.TIS), (0.1, Level.TIS)],
)
def test_even_noise_asks_for_no_more_than_capped_weights(scale: float, wanted: Level, seed: int) -> None:
    """With rounding noise k-hat may be anything, and nothing is asked for."""
    assert asked_level(measured(scale * normal(10 + 2 * seed)))[0] == wanted


@pytest.mark.parametrize(("share", "size"), [(0.01, 1.5), (0.05, 1.0), (0.004, 3.0)])
def test_a_heavy_tail_asks_for_a_mask(share: float, size: float) -> None:
    """Upwards it costs the sample, downwards it does not; either way most tokens are as they should be."""
    for sign, reason in ((1, "worth"), (-1, "factor of 2")):
        level, why = asked_level(measured(sign * with_tail(share, size)))
        assert level == Level.ICEPOP
        assert reason in why


def test_a_tail_that_k_hat_alone_sees() -> None:
    """No token is off by a factor of 2, and few are far above the others."""
    delta = 0.02 * normal(40)
    places = torch.arange(50)
    delta.view(-1)[places * 19] = 0.69 * (places.double() + 1) ** -0.5
    metrics = measured(delta)
    assert metrics["abs_above_ln2_share"] == 0
    assert metrics["token_pareto_k"] > 0.7
    level, why = asked_level(metrics)
    assert level == Level.ICEPOP
    assert "k-hat" in why


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_bulk_that_is_off_asks_for_whole_responses(sign: int) -> None:
    """As under another temperature: most tokens are off, none by much."""
    level, why = asked_level(measured(sign * 0.15 + 0.01 * normal(50)))
    assert level == Level.GEOMETRIC
    assert "half of all tokens" in why


def test_up_at_once_and_down_step_by_step() -> None:
    calm, bulk = measured(1e-7 * normal(10)), measured(0.2 + 0 * normal(10))
    choice = choose(Level.NONE, 0, bulk)
    assert (choice.level, choice.calm) == (Level.GEOMETRIC, 0)
    levels = []
    for _ in range(3 * CALM_STEPS + 2):
        choice = choose(choice.level, choice.calm, calm)
        levels.append(int(choice.level))
    down = [3] * (CALM_STEPS - 1) + [2] * CALM_STEPS + [1] * CALM_STEPS + [0] * 3
    assert levels == down
    interrupted = choose(Level.GEOMETRIC, CALM_STEPS - 1, bulk)
    assert (interrupted.level, interrupted.calm) == (Level.GEOMETRIC, 0)


def test_without_log_probs_nothing_changes() -> None:
    nothing = torch.full((2, 3), torch.nan)
    metrics = drift_metrics(nothing, nothing, torch.ones(2, 3, dtype=torch.bool))
    choice = choose(Level.ICEPOP, 3, metrics)
    assert (choice.level, choice.calm) == (Level.ICEPOP, 3)
