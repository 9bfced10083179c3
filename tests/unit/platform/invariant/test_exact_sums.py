"""Sums and products whose order does not count, against integers of any size."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from megarl.platform.invariant.exact import grid_bits, on_grid, product, total, weight_grid

SIZES = (1, 2, 7, 64, 300, 1025)


def spread(*shape: int, seed: int) -> Tensor:
    """fp32 numbers over twelve orders of magnitude, a few of them 0, with rows of very different size."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randn(shape, generator=generator)
    scales = 10.0 ** (torch.rand(shape, generator=generator) * 12 - 6)
    rows = 10.0 ** (torch.rand(*shape[:-1], 1, generator=generator) * 20 - 10)
    return torch.where(torch.rand(shape, generator=generator) < 0.05, 0.0, signs * scales * rows)


@pytest.mark.parametrize("terms", SIZES)
def test_a_grid_is_as_fine_as_its_bits_say(terms: int) -> None:
    x = spread(40, terms, seed=terms)
    bits = grid_bits(terms)
    gridded = on_grid(x, bits)
    largest = x.abs().amax(dim=1, keepdim=True).double()
    # half a step of the grid, whose top is at most twice the largest value
    assert bool(((gridded - x.double()).abs() <= largest * 2.0**-bits).all())
    assert bool((gridded[x == 0] == 0).all())


@pytest.mark.parametrize("terms", SIZES)
def test_a_product_is_the_exact_one_of_its_grids(terms: int) -> None:
    x, weight = spread(3, terms, seed=1), spread(4, terms, seed=2)
    bits = grid_bits(terms)
    found = product(x, weight_grid(weight))
    rows, columns = on_grid(x, bits).tolist(), on_grid(weight, bits).tolist()
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            exact = sum(Fraction(a) * Fraction(b) for a, b in zip(row, column, strict=True))
            assert Fraction(float(found[i, j])) == exact


@pytest.mark.parametrize("terms", SIZES[1:])
def test_the_order_of_the_terms_and_zeros_between_them_change_no_bit(terms: int) -> None:
    x, weight = spread(17, terms, seed=3), spread(9, terms, seed=4)
    bits = grid_bits(terms)
    x_grid, weight_on_grid = on_grid(x, bits), on_grid(weight, bits)
    order = torch.randperm(terms, generator=torch.Generator().manual_seed(5))
    first = x_grid @ weight_on_grid.t()
    assert torch.equal(first, x_grid[:, order] @ weight_on_grid[:, order].t())
    half = terms // 2
    split = x_grid[:, :half] @ weight_on_grid[:, :half].t() + x_grid[:, half:] @ weight_on_grid[:, half:].t()
    assert torch.equal(first, split)
    padded = torch.cat([torch.zeros(17, 5), x], dim=1)
    assert torch.equal(on_grid(padded, bits)[:, 5:], x_grid)


def test_without_a_grid_the_order_of_the_terms_does_change_bits() -> None:
    x, weight = spread(17, 1025, seed=3).double(), spread(9, 1025, seed=4).double()
    order = torch.randperm(1025, generator=torch.Generator().manual_seed(5))
    assert not torch.equal(x @ weight.t(), x[:, order] @ weight[:, order].t())


def test_a_total_does_not_depend_on_the_order() -> None:
    x = torch.rand(50, 999, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).pow(8)
    order = torch.randperm(999, generator=torch.Generator().manual_seed(1))
    found = total(x, 1000)
    assert torch.equal(found, total(x[:, order], 1000))
    assert torch.equal(found, total(torch.cat([x, torch.zeros(50, 1)], dim=1), 1000))
    # half a step of 2^-43 a term
    torch.testing.assert_close(found, x.sum(dim=1), rtol=0.0, atol=999 * 2.0**-44)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(bad: float) -> None:
    x, weight = spread(5, 33, seed=6), spread(4, 33, seed=7)
    clean = product(x, weight_grid(weight))
    x[2, 7] = bad
    found = product(x, weight_grid(weight))
    assert not found[2].isfinite().any()
    assert torch.equal(found[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
