"""Tokens behind the same tokens: which they are, and what their log-probs tell, against sums from the definition."""

import itertools
import math

import torch

from megarl.drift.diagnosis import Reported, Sampling, diagnose_alone
from megarl.drift.diagnosis.contexts import Contexts, shared_contexts
from megarl.drift.diagnosis.draws import Draws, excess
from megarl.drift.diagnosis.fit import fit_slope

NAN = float("nan")


def test_contexts_are_equal_prompts_tokens_and_weights() -> None:
    starts = ["a", "a", "a", "b", None, None]
    lengths = [3, 3, 2, 1, 1, 1]
    tokens = [7, 8, 9, 7, 8, 9, 7, 5, 7, 7, 7]
    weights = [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    found = shared_contexts(starts, lengths, tokens, weights).tolist()
    firsts, seconds = {found[0], found[3], found[6]}, {found[1], found[4], found[7]}
    assert len(firsts) == len(seconds) == 1 and firsts != seconds and -1 not in firsts | seconds
    # the third tokens were drawn by other weights, "b" is alone, and prompts that are not known are not the same
    assert found[2] == found[5] == -1 and found[8:] == [-1, -1, -1]


def reported(contexts: list[int], tokens: list[int], engine: list[float], trainer: list[float]) -> Reported:
    return Reported(
        torch.arange(len(tokens)),
        torch.tensor(tokens),
        torch.tensor(engine, dtype=torch.float64),
        torch.tensor(trainer, dtype=torch.float64),
        torch.tensor(contexts),
        Sampling(),
    )


def test_contrasts_leave_out_the_context_and_keep_the_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = [0, 1, 2, 3, 0, 1, 0, 0]
    contexts = [4, 4, 4, 4, 9, 9, 9, -1]
    engine = torch.randn(8, generator=generator, dtype=torch.float64).tolist()
    given = Contexts.of(reported(contexts, tokens, engine, [0.0] * 8))
    contrast_K = given.contrasts(given.engine_P)
    # of each context with k tokens: the sum of squares about the mean, in k - 1 numbers
    of_four = torch.tensor(engine[:4], dtype=torch.float64)
    of_two = torch.tensor([(engine[4] + engine[6]) / 2, engine[5]], dtype=torch.float64)
    squares = sum(float((one - one.mean()).square().sum()) for one in (of_four, of_two))
    assert len(contrast_K) == 4
    assert math.isclose(float(contrast_K.square().sum()), squares, rel_tol=1e-12)
    moved_P = given.engine_P + torch.tensor([5.0] * 4 + [-3.0] * 2)
    assert torch.allclose(given.contrasts(moved_P), contrast_K, atol=1e-12)
    assert math.isclose(given.repeated(torch.tensor(engine)), abs(engine[4] - engine[6]), rel_tol=1e-6)


def test_a_token_without_a_log_prob_counts_nowhere() -> None:
    given = Contexts.of(reported([1, 1, 1], [3, 4, 5], [-1.0, NAN, -2.0], [-1.0, -1.0, -1.0]))
    assert given.members_M.tolist() == [0, 2]


def test_draws_from_a_distribution_fit_it_and_others_do_not() -> None:
    """2,000 contexts of 4 draws from (.5, .3, .2): the errors are within 4 of 0 for it alone."""
    generator = torch.Generator().manual_seed(1)
    probs_V = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    tokens_N = torch.multinomial(probs_V.expand(2000, -1), 4, replacement=True, generator=generator).flatten()
    contexts = torch.arange(2000).repeat_interleave(4).tolist()
    log_probs_N = probs_V.log()[tokens_N]
    given = Contexts.of(reported(contexts, tokens_N.tolist(), log_probs_N.tolist(), log_probs_N.tolist()))
    draws = Draws.of(given, log_probs_N)
    assert draws.contexts == 2000 and abs(draws.errors) < 4
    pairs = [
        tokens_N[4 * context + one] == tokens_N[4 * context + other]
        for context in range(2000)
        for one, other in itertools.permutations(range(4), 2)
    ]
    assert math.isclose(draws.equal, sum(map(float, pairs)) / len(pairs), rel_tol=1e-12)
    colder_V = (probs_V**2 / (probs_V**2).sum()).log()
    assert Draws.of(given, colder_V[tokens_N]).errors < -4
    assert Draws.of(given, (probs_V**0.5 / (probs_V**0.5).sum()).log()[tokens_N]).errors > 4


def test_a_mean_ratio_above_1_rules_a_side_out() -> None:
    generator = torch.Generator().manual_seed(3)
    own_V, other_V = (torch.tensor(probs, dtype=torch.float64) for probs in ((0.5, 0.3, 0.2), (0.6, 0.3, 0.1)))
    tokens_N = torch.multinomial(own_V, 20_000, replacement=True, generator=generator)
    log_ratio_N = (other_V / own_V).log()[tokens_N]
    log_ratio_N[5] = NAN
    # the mean is 1 over draws of its own, and the sum of squares over the other over draws of the other
    assert abs(excess(log_ratio_N)) < 4
    assert excess(-log_ratio_N) > 4
    assert excess(torch.tensor([0.0] * 100 + [300.0])) <= 1 + 1e-12
    assert excess(torch.tensor([NAN])) == 0.0


def test_the_slope_is_the_nearest_in_the_mean() -> None:
    generator = torch.Generator().manual_seed(2)
    one_N = torch.randn(50, generator=generator, dtype=torch.float64)
    other_N = 0.7 * one_N + 0.1 * torch.randn(50, generator=generator, dtype=torch.float64)
    slope = fit_slope(one_N, other_N)
    distance = float((other_N - slope * one_N).abs().mean())
    assert all(float((other_N - near * one_N).abs().mean()) >= distance for near in (slope - 1e-3, slope + 1e-3))
    assert math.isnan(fit_slope(torch.zeros(3), torch.ones(3)))


def test_no_token_at_all_has_no_cause() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    nothing = torch.zeros(0, dtype=torch.float64)
    diagnosis = diagnose_alone(Reported(empty, empty, nothing, nothing, empty))
    assert not diagnosis.findings and diagnosis.tokens == 0
