"""Batch-invariant operations: their values and gradients are those of torch's, and their bits are each row's own."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megarl.platform.invariant import elementary, rows
from megarl.platform.invariant.attention import attention
from megarl.platform.invariant.linear import linear
from megarl.platform.invariant.rotary import Rotary

CONTEXT = 64


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_exp_is_e_to_the_x() -> None:
    values = [0.0, -1e-9, -0.3466, -0.5, -1.0, -20.0, -103.97, -699.0, 1.0, 88.0, 600.0]
    found = elementary.exp(torch.tensor(values, dtype=torch.float64)).tolist()
    assert found == pytest.approx([math.exp(value) for value in values], rel=1e-11, abs=0.0)
    assert elementary.exp(torch.tensor([-1e30, -math.inf], dtype=torch.float64)).max() < 1e-303
    assert elementary.exp(torch.tensor([math.nan], dtype=torch.float64)).isnan().all()


def test_log_is_the_natural_log() -> None:
    values = [1e-300, 0.1, 0.5, 0.70710678, 0.70710679, 0.999999, 1.0, 1.0000001, 2.0, 3.0, 128000.0, 1e300]
    found = elementary.log(torch.tensor(values, dtype=torch.float64)).tolist()
    # the sum of two terms of up to 700, each rounded to 2^-53
    assert found == pytest.approx([math.log(value) for value in values], rel=1e-15, abs=1e-15)


def test_cosine_and_sine_are_those_of_the_angle() -> None:
    values = [0.0, 0.5, math.pi / 4, 1.0, math.pi / 2, 3.0, -3.0, 4.0, 5.5, 1000.0, -12345.678, 131071.0, 1e6]
    cos, sin = elementary.cos_sin(torch.tensor(values, dtype=torch.float64))
    # a few roundings of values up to 1; the rest of an angle of 1e6 is off by 1e6 2^-87 of two roundings
    assert cos.tolist() == pytest.approx([math.cos(value) for value in values], rel=0.0, abs=1e-15)
    assert sin.tolist() == pytest.approx([math.sin(value) for value in values], rel=0.0, abs=1e-15)


def test_elements_do_not_depend_on_their_place() -> None:
    """At every offset of vectors and their remainders, on a stride too."""
    x = normal(4099) * 30
    alone = torch.cat([rows.silu(x[place : place + 1]) for place in range(0, 4099, 41)])
    assert torch.equal(rows.silu(x)[::41], alone)
    assert torch.equal(rows.silu(x[::41]), alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_rows_bits_are_its_own(dtype: torch.dtype) -> None:
    x, weight, bias = normal(37, 65, dtype=dtype), normal(43, 65, seed=1, dtype=dtype), normal(43, seed=2, dtype=dtype)
    gain = normal(65, seed=3, dtype=dtype)
    logits = normal(37, 65).mul(5)
    each: list[tuple[Callable[[Tensor], Tensor], Tensor]] = [
        (lambda part: linear(part, weight, bias), x),
        (lambda part: rows.rms_norm(part, gain, 1e-6), x),
        (rows.silu, x),
        (rows.log_softmax, logits),
    ]
    for function, given in each:
        together = function(given)
        assert torch.equal(together, torch.cat([function(given[row : row + 1]) for row in range(37)]))
        assert torch.equal(together[5:30], function(given[5:30]))


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    """On products, sums and elements that are many enough for torch to share them out."""
    x, weight = normal(700, 512), normal(300, 512, seed=1)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            inside = rows.silu(linear(x, weight))
            found.append(rows.log_softmax(rows.rms_norm(inside, weight[:, 0], 1e-6)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_does_not_see_padding_batch_or_order_of_keys(dtype: torch.dtype) -> None:
    """One sequence read at once; then token by token over a cache, behind padding and beside another sequence."""
    length, pads = 21, 6
    q, k, v = (normal(1, heads, length, 8, seed=heads + 7, dtype=dtype) for heads in (4, 2, 3))
    v = v[:, :2]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    together = attention(q, k, v, causal, None, CONTEXT)
    order = torch.randperm(length, generator=torch.Generator().manual_seed(2))
    assert torch.equal(together, attention(q, k[:, :, order], v[:, :, order], causal[:, order], None, CONTEXT))
    other_k, other_v = normal(1, 2, length + pads, 8, seed=1, dtype=dtype), normal(1, 2, length + pads, 8, seed=2)
    junk_k, junk_v = (1e4 * normal(1, 2, pads, 8, seed=seed, dtype=dtype) for seed in (3, 4))
    keys = torch.cat([torch.cat([junk_k, k], dim=2), other_k])
    values = torch.cat([torch.cat([junk_v, v], dim=2), other_v.to(dtype)])
    for step in range(length):
        width = pads + step + 1
        visible = (torch.arange(width) >= pads).expand(2, 1, 1, width)
        query = q[:, :, step : step + 1].expand(2, -1, -1, -1)
        decoded = attention(query, keys[:, :, :width], values[:, :, :width], visible, None, CONTEXT)
        assert torch.equal(decoded[:1], together[:, :, step : step + 1])


def test_values_and_gradients_are_those_of_torch() -> None:
    """In fp32, to some roundings: 2^-20 of values of a few units."""
    x, weight, bias, gain = normal(2, 9, 64), normal(48, 64, seed=1), normal(48, seed=2), normal(64, seed=3)
    q, k, v = (normal(2, heads, 9, 8, seed=heads) for heads in (4, 2, 1))
    v = normal(2, 2, 9, 8, seed=9)
    visible = torch.ones(9, 9, dtype=torch.bool).tril()
    pairs: list[tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]] = [
        (linear, F.linear, (x, weight, bias)),
        (lambda *given: rows.rms_norm(*given, 1e-6), lambda a, b: F.rms_norm(a, (64,), b, 1e-6), (x, gain)),
        (rows.silu, F.silu, (x,)),
        (
            lambda *given: attention(*given, visible, None, CONTEXT),
            lambda *given: plain_attention(*given, visible),
            (q, k, v),
        ),
    ]
    for ours, theirs, inputs in pairs:
        leaves = [tuple(part.clone().requires_grad_() for part in inputs) for _ in range(2)]
        found, expected = ours(*leaves[0]), theirs(*leaves[1])
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-5)
        direction = normal(*expected.shape, seed=11)
        found.backward(direction)  # type: ignore[no-untyped-call]
        expected.backward(direction)  # type: ignore[no-untyped-call]
        for a, b in zip(*leaves, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=2e-6, atol=2e-5)


def test_the_log_softmax_is_that_of_torch() -> None:
    logits = normal(20, 1000) * 8
    # log-probs of up to 60, rounded to fp32 twice
    torch.testing.assert_close(rows.log_softmax(logits), logits.double().log_softmax(-1).float(), rtol=3e-7, atol=1e-6)


def test_the_rotary_embedding_turns_each_pair_by_its_angle() -> None:
    rotary = Rotary(torch.tensor([1.0, 0.25]), 16)
    x = torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]])
    found = rotary.turn(x, torch.tensor([3]))[0, 0, 0].tolist()
    for first, second, frequency in ((0, 2, 1.0), (1, 3, 0.25)):
        turned = complex(float(x[0, 0, 0, first]), float(x[0, 0, 0, second])) * complex(
            math.cos(3 * frequency), math.sin(3 * frequency)
        )
        assert [found[first], found[second]] == pytest.approx([turned.real, turned.imag], rel=1e-6)
