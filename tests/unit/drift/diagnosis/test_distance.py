"""Distances, the sign test and errors that look alike."""

import torch

from megarl.drift.diagnosis.distance import DECIDES, Distance
from megarl.drift.diagnosis.errors import Errors

NAN = float("nan")


def test_tokens_without_a_log_prob_count_nowhere() -> None:
    one = Distance.between(torch.tensor([1.0, NAN, 3.0]), torch.tensor([0.5, 2.0, NAN]))
    assert one.mean == 0.5
    assert one.nearer_than(Distance.between(torch.tensor([0.0, 0.0, 0.0]), torch.tensor([9.0, 9.0, 9.0]))) == 1.0


def test_no_token_at_all_is_no_distance() -> None:
    nothing = Distance.between(torch.tensor([NAN]), torch.tensor([1.0]))
    assert (nothing.mean, nothing.bias, nothing.is_biased) == (0.0, 0.0, False)


def test_a_log_prob_of_nothing_is_infinitely_far_and_may_be_explained() -> None:
    before = Distance.between(torch.tensor([0.0, -torch.inf]), torch.zeros(2))
    after = Distance.between(torch.zeros(2), torch.zeros(2))
    assert before.mean == torch.inf
    assert after.explained(before) == 1.0


def test_a_constant_shift_below_the_noise_is_a_bias_and_noise_is_none() -> None:
    generator = torch.Generator().manual_seed(1)
    noise_N = 0.02 * torch.randn(2000, dtype=torch.float64, generator=generator)
    assert not Distance(noise_N).is_biased
    assert Distance(noise_N + 0.01).is_biased


def _errors(side_N: torch.Tensor, model_N: torch.Tensor, other_N: torch.Tensor) -> Errors:
    return Errors.of(torch.zeros_like(side_N), side_N, model_N, other_N)


def test_errors_are_alike_where_they_share_roundings_and_size() -> None:
    generator = torch.Generator().manual_seed(2)
    shared, own, other, small = torch.randn(4, 1000, dtype=torch.float64, generator=generator)
    side, hypothesis = shared + 0.5 * own, shared + 0.5 * other
    assert _errors(side, 1e-5 * small, hypothesis).alike(is_nearer=False)
    assert not _errors(own, 1e-5 * small, other).alike(is_nearer=False)
    # as large as the model's own: roundings are shared whatever the cause, and the side must be nearer
    assert not _errors(side, shared + 0.6 * small, hypothesis).alike(is_nearer=False)


def test_the_sign_test_is_in_standard_errors() -> None:
    near, far = Distance(torch.full((100,), 0.1)), Distance(torch.full((100,), 0.2))
    assert near.nearer_than(far) == 10.0 > DECIDES
    assert far.nearer_than(near) == -10.0
