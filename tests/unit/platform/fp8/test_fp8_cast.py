"""Values in FP8 are torch's own casts, bit for bit; scales are exact arithmetic's."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from megarl.config.precision import FP8Config
from megarl.platform.fp8.blocks import quantise_blocks, quantise_mx
from megarl.platform.fp8.cast import E4M3, E5M2, Quantised, amax, largest, quantise, saturating_cast, scale_of
from megarl.platform.fp8.rounding import Rounding

DTYPES = [E4M3, E5M2]
NAN, INF = math.nan, math.inf


def matrix(rows: int = 200, columns: int = 300) -> Tensor:
    """Numbers over 40 powers of two."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-30, 10, (rows, columns), generator=generator)
    return torch.ldexp(torch.randn(rows, columns, generator=generator), exponents)


def by_tensor(x: Tensor, dtype: torch.dtype) -> Quantised:
    return quantise(x, scale_of(amax(x), dtype), dtype)


def by_blocks(x: Tensor, dtype: torch.dtype) -> Quantised:
    return quantise_blocks(x, (1, 128), dtype, power_of_two=True)


def by_mx(x: Tensor, dtype: torch.dtype) -> Quantised:
    return quantise_mx(x, (1, 32), dtype)


WAYS: list[Callable[[Tensor, torch.dtype], Quantised]] = [by_tensor, by_blocks, by_mx]


def bits(x: Tensor) -> Tensor:
    return x.view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cast_is_torchs_up_to_the_largest_and_saturates_beyond(dtype: torch.dtype) -> None:
    x = torch.cat([matrix().flatten(), torch.arange(-256, 257) / 64])
    inside = x[x.abs() <= largest(dtype)]
    assert torch.equal(bits(saturating_cast(inside, dtype)), bits(inside.to(dtype)))
    beyond = torch.tensor([2 * largest(dtype), INF, -INF])
    assert saturating_cast(beyond, dtype).float().tolist() == [largest(dtype), largest(dtype), -largest(dtype)]
    assert saturating_cast(torch.tensor([NAN]), dtype).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", [(1, 128), (128, 1), (128, 128), (1, 32), (32, 1)])
def test_blocks_are_casts_of_the_scaled_block(dtype: torch.dtype, source: torch.dtype, block: tuple[int, int]) -> None:
    """Each block alone, the small ones at the edges too; block by block, as a loop would do it."""
    x = matrix().to(source)
    for is_mx in (False, True):
        got = quantise_mx(x, block, dtype) if is_mx else quantise_blocks(x, block, dtype, power_of_two=False)
        for row in range(0, x.shape[0], block[0]):
            for column in range(0, x.shape[1], block[1]):
                place = (slice(row, row + block[0]), slice(column, column + block[1]))
                top = x[place].float().abs().max()
                if is_mx:
                    scale = torch.tensor(2.0 ** -math.ceil(math.log2(top.item() / largest(dtype))))
                else:
                    scale = largest(dtype) / top
                wanted = (x[place].float() * scale).to(dtype)
                assert torch.equal(bits(got.values[place].contiguous()), bits(wanted))
                assert torch.equal(got.inverse_scale[place], (1 / scale).expand(wanted.shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_power_of_two_scales_are_rounded_down(dtype: torch.dtype) -> None:
    tops = torch.tensor([1.0, 448.0, 3.7, 1e-20, 57344.0, 0.3])
    exact, rounded = scale_of(tops, dtype), scale_of(tops, dtype, power_of_two=True)
    assert torch.equal(rounded, 2.0 ** exact.double().log2().floor().float())
    assert (tops * rounded <= largest(dtype)).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_stay_zero_at_scale_1(way: Callable[[Tensor, torch.dtype], Quantised], dtype: torch.dtype) -> None:
    for x in (torch.zeros(3, 300), torch.zeros(1, 1), -torch.zeros(2, 2)):
        got = way(x, dtype)
        assert torch.equal(got.dequantise(), torch.zeros_like(x))
        assert (got.inverse_scale == 1).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_element_is_kept(way: Callable[[Tensor, torch.dtype], Quantised], dtype: torch.dtype) -> None:
    """Scaled to the largest number it is that number; by a power of two it is off by at most half a unit."""
    for value in (3.7, -1e-12, 6e4):
        relative = 0.0 if way is by_tensor else 2.0 ** -(4 if dtype == E4M3 else 3)
        assert way(torch.tensor([[value]]), dtype).dequantise().item() == pytest.approx(value, rel=relative + 1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_its_own_affair(way: Callable[[Tensor, torch.dtype], Quantised], dtype: torch.dtype) -> None:
    """It stays, and the others of its block are scaled as if it were not there."""
    x = matrix(2, 300)
    with_nan = x.clone()
    with_nan[0, 5] = NAN
    x[0, 5] = 0.0
    got, wanted = way(with_nan, dtype).dequantise(), way(x, dtype).dequantise()
    assert got[0, 5].isnan()
    got[0, 5] = 0.0
    assert torch.equal(got, wanted)
    assert way(torch.full((1, 1), NAN), dtype).dequantise().isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinity_saturates_at_scale_1_or_keeps_in_mx(dtype: torch.dtype) -> None:
    x = torch.tensor([[INF, 1.0, -INF]])
    for way in (by_tensor, by_blocks):
        assert way(x, dtype).dequantise().tolist() == [[largest(dtype), 1.0, -largest(dtype)]]
    assert by_mx(x, dtype).dequantise().tolist() == [[INF, 0.0, -INF]]


def test_a_scale_beyond_fp32_is_its_largest() -> None:
    tiny = torch.tensor(1e-40)
    assert scale_of(tiny, E4M3).item() == torch.finfo(torch.float32).max
    assert by_tensor(tiny.view(1, 1), E4M3).dequantise().isfinite().all()


@pytest.mark.parametrize("format", ["e4m3", "hybrid"])
@pytest.mark.parametrize("recipe", ["tensorwise", "delayed", "blockwise", "mxfp8"])
def test_the_format_decides_the_gradients_dtype(recipe: str, format: str) -> None:
    rounding = Rounding(FP8Config(recipe=recipe, format=format))
    dtypes = [rounding(matrix(), role, 1).values.dtype for role in ("input", "weight", "gradient")]
    assert dtypes == [E4M3, E4M3, E5M2 if format == "hybrid" else E4M3]


def test_blocks_lie_along_the_summed_dimension() -> None:
    """One scale for a row of 128 or for a column of 128; for the weight one for both."""
    rounding = Rounding(FP8Config(recipe="blockwise"))
    x = matrix(256, 256)
    rows, columns = (rounding(x, "input", along).inverse_scale for along in (1, 0))
    assert (rows[:, :128] == rows[:, :1]).all()
    assert (columns[:128] == columns[:1]).all()
    assert not (rows[:128] == rows[:1]).all()
    square = rounding(x, "weight", 1).inverse_scale
    assert (square[:128, :128] == square[0, 0]).all()
    assert torch.equal(square, rounding(x, "weight", 0).inverse_scale)
