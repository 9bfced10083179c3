"""Whether two scorings err alike: ranks, which no outlier sways, and ties that add nothing."""

import torch
from torch import Tensor

from megarl.drift.diagnosis.errors import Errors

TOKENS = 300


def errors_of(side_N: Tensor, hypothesis_N: Tensor) -> Errors:
    """Of two scorings beside a model with errors of 1e-7, from exact log-probs of 0."""
    exact_N = torch.zeros(len(side_N), dtype=torch.float64)
    return Errors.of(exact_N, side_N, exact_N + 1e-7, hypothesis_N)


def drawn(*names: int) -> list[Tensor]:
    return [torch.randn(TOKENS, generator=torch.Generator().manual_seed(name), dtype=torch.float64) for name in names]


def test_half_of_the_error_in_common_is_alike_and_nothing_in_common_is_not() -> None:
    common_N, own_N, other_N = drawn(0, 1, 2)
    side_N = 1e-2 * (common_N + own_N)
    assert errors_of(side_N, 1e-2 * (common_N + other_N)).alike(is_nearer=False)
    assert not errors_of(side_N, 1e-2 * other_N).alike(is_nearer=True)


def test_one_outlier_in_common_is_not_alike() -> None:
    """It makes a correlation of the errors themselves nearly 1."""
    side_N, other_N = (1e-2 * values_N for values_N in drawn(3, 4))
    side_N[7] = other_N[7] = 5.0
    assert torch.corrcoef(torch.stack([side_N, other_N]))[0, 1] > 0.99
    assert not errors_of(side_N, other_N).alike(is_nearer=True)


def test_tokens_without_an_error_on_either_side_add_nothing() -> None:
    """A certain token has a log-prob of 0 in every precision; equal errors have equal ranks, whatever their order."""
    side_N, other_N = (1e-2 * values_N for values_N in drawn(5, 6))
    side_N[100:], other_N[100:] = 0.0, 0.0
    assert abs(errors_of(side_N, other_N).correlation) < 4 / 100**0.5
    turned = errors_of(side_N.flip(0), other_N.flip(0))
    assert abs(turned.correlation - errors_of(side_N, other_N).correlation) < 1e-12


def test_of_hypotheses_that_correlate_as_well_the_one_of_the_sides_size_is_the_likeliest() -> None:
    common_N, own_N, other_N = drawn(7, 8, 9)
    side_N = common_N + own_N
    hypothesis_N = common_N + other_N
    hypothesis_N = hypothesis_N * side_N.abs().mean() / hypothesis_N.abs().mean()
    by_size = {size: errors_of(side_N, size * hypothesis_N).likelihood for size in (0.7, 0.9, 1.0, 1.1, 1.4)}
    assert max(by_size, key=lambda size: by_size[size]) == 1.0
    # a foretelling that is clear outweighs a size that is a little nearer
    assert errors_of(side_N, 1.1 * side_N).likelihood > by_size[1.0]
    # errors in opposite directions foretell nothing
    assert errors_of(side_N, -side_N).likelihood == 0
