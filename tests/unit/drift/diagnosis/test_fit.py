"""Settings are fitted back from the log-probs that they give."""

import pytest
import torch

from megarl.drift.diagnosis.distribution import Distributions
from megarl.drift.diagnosis.fit import fit_temperature, fit_top_k, fit_top_p
from megarl.drift.diagnosis.rollouts import Sampling

VOCAB = 40


@pytest.fixture(scope="module")
def drawn() -> Distributions:
    """Likeliest tokens half of the time, so that every truncation leaves most of them."""
    generator = torch.Generator().manual_seed(3)
    logits_NV = 2 * torch.randn(300, VOCAB, dtype=torch.float64, generator=generator)
    targets_N = torch.multinomial(logits_NV.softmax(dim=1), 1, generator=generator)[:, 0]
    return Distributions(logits_NV, targets_N)


@pytest.mark.parametrize("temperature", [0.1, 0.3, 0.7, 1.0, 1.3, 4.0, 12.0])
def test_a_temperature_comes_back(drawn: Distributions, temperature: float) -> None:
    fitted = fit_temperature(drawn, drawn.log_probs(Sampling(temperature)))
    # the bracket of log T is down to 1e-8, and the mean distance is flat within its own rounding
    assert fitted == pytest.approx(temperature, rel=1e-6)


@pytest.mark.parametrize("top_p", [0.3, 0.8, 0.95, 0.995])
def test_a_top_p_comes_back_to_the_bit(drawn: Distributions, top_p: float) -> None:
    fitted = fit_top_p(drawn, 0.9, drawn.log_probs(Sampling(0.9, top_p)))
    same = drawn.log_probs(Sampling(0.9, fitted))
    assert torch.allclose(same, drawn.log_probs(Sampling(0.9, top_p)), rtol=0, atol=1e-12)


def test_of_top_p_that_leave_the_same_tokens_the_roundest_is_taken() -> None:
    """Probabilities .71, .15, .14: any top-p above .71 and up to .86 leaves two."""
    logits_NV = torch.tensor([[0.71, 0.15, 0.14]], dtype=torch.float64).log().expand(20, -1)
    given = Distributions(logits_NV, torch.tensor([0, 1] * 10))
    assert fit_top_p(given, 1.0, given.log_probs(Sampling(top_p=0.77))) == 0.8


@pytest.mark.parametrize("top_k", [1, 4, 17])
def test_a_top_k_comes_back(drawn: Distributions, top_k: int) -> None:
    assert fit_top_k(drawn, 1.1, drawn.log_probs(Sampling(1.1, top_k=top_k))) == top_k
