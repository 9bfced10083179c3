"""Log-probs under a sampling against a loop in fp64; surprise and kept mass against draws."""

import math

import pytest
import torch

from megarl.drift.diagnosis.distribution import Distributions, truncated
from megarl.drift.diagnosis.rollouts import Sampling

ROWS, VOCAB = 64, 24


def distributions(rows: int = ROWS) -> Distributions:
    generator = torch.Generator().manual_seed(5)
    logits_NV = 2 * torch.randn(rows, VOCAB, dtype=torch.float64, generator=generator)
    return Distributions(logits_NV, torch.randint(VOCAB, (rows,), generator=generator))


def naive(logits: list[float], target: int, sampling: Sampling) -> float:
    scaled = [value / sampling.temperature for value in logits]
    order = sorted(range(VOCAB), key=lambda token: -scaled[token])
    if sampling.top_k:
        order = order[: sampling.top_k]
    total = sum(math.exp(scaled[token]) for token in order)
    left, mass = [], 0.0
    for token in order:
        if left and mass >= sampling.top_p:
            break
        left.append(token)
        mass += math.exp(scaled[token]) / total
    left = [token for token in {*left, target} if token not in sampling.banned]
    return scaled[target] - math.log(sum(math.exp(scaled[token]) for token in left))


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(0.6), Sampling(top_p=0.8), Sampling(top_k=5), Sampling(0.7, 0.9, 8), Sampling(banned=(0,))],
)
def test_log_probs_are_those_of_a_loop(sampling: Sampling) -> None:
    given = distributions()
    kept = [row for row in range(ROWS) if int(given.targets_N[row]) not in sampling.banned]
    own = given.log_probs(sampling)
    for row in kept:
        expected = naive(given.logits_NV[row].tolist(), int(given.targets_N[row]), sampling)
        # sums of 24 terms in another order, of values up to 20
        assert own[row].item() == pytest.approx(expected, abs=24 * 20 * 2.0**-52)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7), Sampling(top_p=0.8), Sampling(1.3, top_k=6)])
def test_draws_are_no_surprise_under_what_they_are_drawn_from_alone(sampling: Sampling) -> None:
    logits_NV = distributions(4000).logits_NV
    left_NV = truncated(logits_NV / sampling.temperature, sampling.top_p, sampling.top_k)
    generator = torch.Generator().manual_seed(7)
    drawn = Distributions(logits_NV, torch.multinomial(left_NV.softmax(dim=1), 1, generator=generator)[:, 0])
    # five standard errors: 6 in ten million
    assert abs(drawn.surprise(sampling)) < 5
    assert abs(drawn.surprise(Sampling(2.5))) > 5


def test_the_kept_mass_is_at_least_top_p() -> None:
    given = distributions(1000)
    likeliest = Distributions(given.logits_NV, given.logits_NV.argmax(dim=1))
    for top_p in (0.5, 0.8, 0.95):
        assert top_p <= likeliest.kept_mass(Sampling(top_p=top_p)) < 1
