"""Inverse-CDF sampling, and uniforms that belong to the response."""

import math

import numpy as np
import pytest
import torch

from megarl.rollout.sampling import sample, uniforms
from megarl.rollout.types import Request

LOGITS = torch.tensor([1.5, -2.0, 0.3, 0.0, 2.2, -0.7, 1.1, -4.0])
ALMOST_ONE = 1 - 2.0**-53


def repeated(logits: torch.Tensor, times: int) -> torch.Tensor:
    return logits.expand(times, -1)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_counts_follow_the_softmax(temperature: float) -> None:
    draws = 100_000
    probabilities = (LOGITS.double() / temperature).softmax(0).numpy()
    u = torch.from_numpy(np.random.default_rng(0).random(draws))
    tokens, log_probs = sample(repeated(LOGITS, draws), temperature, u)
    counts = np.bincount(tokens.numpy(), minlength=len(LOGITS))
    expected = draws * probabilities
    statistic = ((counts - expected) ** 2 / expected).sum()
    # Laurent and Massart 2000, lemma 1: P(chi2_k >= k + 2 sqrt(k x) + 2 x) <= e^-x; x = 14 is one in a million
    degrees, x = len(LOGITS) - 1, 14
    assert statistic < degrees + 2 * math.sqrt(degrees * x) + 2 * x
    np.testing.assert_allclose(log_probs.numpy(), np.log(probabilities)[tokens.numpy()], rtol=0, atol=1e-6)


def test_an_even_grid_of_uniforms_splits_by_the_probabilities() -> None:
    count = 10_000
    u = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens, _ = sample(repeated(LOGITS, count), 0.7, u)
    wanted = count * (LOGITS.double() / 0.7).softmax(0)
    assert ((torch.bincount(tokens, minlength=len(LOGITS)) - wanted).abs() <= 1).all()
    assert (tokens.diff() >= 0).all()


def test_greedy_takes_the_likeliest_at_the_temperature() -> None:
    tokens, log_probs = sample(torch.stack([LOGITS, -LOGITS]), 0.5, None)
    assert tokens.tolist() == [4, 7]
    wanted = [(sign * LOGITS.double() / 0.5).log_softmax(0)[token] for sign, token in ((1, 4), (-1, 7))]
    torch.testing.assert_close(log_probs.double(), torch.stack(wanted), rtol=0.0, atol=1e-6)


# LOGITS in order: 2.2, 1.5, 1.1, .3, 0, -.7, -2, -4, with probabilities .463, .230, .154, .069, .051, .025, .007, .001
LEFT = {
    (1.0, 3): [0, 4, 6],
    (0.4, 0): [4],
    (0.5, 0): [0, 4],
    (0.9, 0): [0, 2, 4, 6],
    # of the three, .463 + .230 of .847 is .818
    (0.8, 3): [0, 4],
    (0.85, 3): [0, 4, 6],
    (1e-9, 0): [4],
    (1.0, 100): list(range(8)),
}


@pytest.mark.parametrize(("top_p", "top_k"), LEFT)
def test_truncation_leaves_the_likeliest_and_their_distribution(top_p: float, top_k: int) -> None:
    count = 10_000
    u = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens, log_probs = sample(repeated(LOGITS, count), 1.0, u, top_p, top_k)
    kept = LEFT[top_p, top_k]
    wanted = torch.full((8,), -torch.inf, dtype=torch.float64)
    wanted[kept] = LOGITS[kept].double().log_softmax(0)
    assert ((torch.bincount(tokens, minlength=8) - count * wanted.exp()).abs() <= 1).all()
    assert tokens.unique().tolist() == kept
    torch.testing.assert_close(log_probs.double(), wanted[tokens], rtol=0.0, atol=1e-6)


def test_the_temperature_comes_before_the_truncation() -> None:
    """At half the temperature the likeliest has .72, which reaches .6; at 1 it has .46."""
    u = torch.linspace(0, ALMOST_ONE, 100, dtype=torch.float64)
    assert sample(repeated(LOGITS, 100), 0.5, u, 0.6)[0].unique().tolist() == [4]
    assert sample(repeated(LOGITS, 100), 1.0, u, 0.6)[0].unique().tolist() == [0, 4]


def test_tokens_that_tie_with_the_last_one_left_are_left() -> None:
    logits = torch.tensor([1.0, 3.0, 1.0, 0.0, 1.0])
    u = torch.linspace(0, ALMOST_ONE, 200, dtype=torch.float64)
    for top_p, top_k in ((1.0, 2), (0.75, 0), (0.75, 2)):
        assert sample(repeated(logits, 200), 1.0, u, top_p, top_k)[0].unique().tolist() == [0, 1, 2, 4]


def test_greedy_is_the_same_token_with_the_log_prob_of_what_is_left() -> None:
    tokens, log_probs = sample(LOGITS[None], 1.0, None, 0.5)
    assert tokens.tolist() == [4]
    torch.testing.assert_close(log_probs, LOGITS[[4, 0]].log_softmax(0)[:1], rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("u", [0.0, 1e-300, 0.25, 0.5, 0.999999, ALMOST_ONE])
@pytest.mark.parametrize("impossible", [[0], [7], [0, 7], [0, 1, 2, 6, 7], [3, 4], [1, 2, 3, 4, 5, 6, 7]])
def test_tokens_of_no_probability_are_never_drawn(u: float, impossible: list[int]) -> None:
    for spread in (0.0, 1.0, 20.0):
        logits = LOGITS * spread
        logits[impossible] = -math.inf
        tokens, log_probs = sample(logits[None], 1.0, torch.tensor([u], dtype=torch.float64))
        assert tokens.item() not in impossible
        assert log_probs.isfinite().all()


def test_ends_of_the_unit_interval_reach_the_first_and_the_last_token() -> None:
    for count in (3, 7, 1000, 151_936):
        tokens, _ = sample(torch.zeros(2, count), 1.0, torch.tensor([0.0, ALMOST_ONE], dtype=torch.float64))
        assert tokens.tolist() == [0, count - 1]


def test_bf16_logits_are_scored_in_single_precision() -> None:
    logits = LOGITS.bfloat16()[None]
    tokens, log_probs = sample(logits, 0.7, torch.tensor([0.3], dtype=torch.float64))
    assert log_probs.dtype == torch.float32
    wanted = (logits.double() / 0.7).log_softmax(-1)[0, tokens]
    torch.testing.assert_close(log_probs.double(), wanted, rtol=0.0, atol=1e-6)


def request(problem: str, number: int, stream: str = "rl/0") -> Request:
    return Request(problem, number, (1, 2), stream)


REQUESTS = [request(problem, number) for problem in ("a", "b") for number in range(3)]


def test_uniforms_do_not_depend_on_the_batch() -> None:
    together = uniforms(REQUESTS, seed=5, count=20)
    assert together.dtype == torch.float64 and together.shape == (6, 20)
    assert (together >= 0).all() and (together < 1).all()
    backwards = uniforms(REQUESTS[::-1], seed=5, count=20).flip(0)
    alone = torch.cat([uniforms([one], seed=5, count=20) for one in REQUESTS])
    assert torch.equal(together, backwards) and torch.equal(together, alone)
    # a longer budget goes on where a shorter one ends
    assert torch.equal(uniforms(REQUESTS, seed=5, count=7), together[:, :7])


def test_everything_in_the_key_changes_the_uniforms() -> None:
    base = uniforms([request("a", 0)], 5, 20)
    others = [
        uniforms([request("b", 0)], 5, 20),
        uniforms([request("a", 1)], 5, 20),
        uniforms([request("a", 0, "rl/1")], 5, 20),
        uniforms([request("a", 0)], 6, 20),
    ]
    rows = torch.cat([base, *others])
    assert len(rows.unique(dim=0)) == len(rows)
    assert not torch.isclose(rows[1:], base).any()


def test_uniforms_are_spread_over_the_interval() -> None:
    values = uniforms([request(f"p{i}", 0) for i in range(500)], 0, 40).flatten()
    # 20,000 of them: the mean's standard error is .002, that of each decile's share .0021
    assert values.mean().item() == pytest.approx(0.5, abs=0.01)
    shares = torch.histc(values, bins=10, min=0, max=1) / len(values)
    assert (shares - 0.1).abs().max() < 0.011
