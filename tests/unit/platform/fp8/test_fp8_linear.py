"""The three products of an emulated layer, against products of operands that are rounded by hand."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from megarl.config.precision import FP8Config
from megarl.platform.fp8.linear import _linear, emulate_fp8
from megarl.platform.fp8.rounding import Rounding

RECIPES = ["tensorwise", "delayed", "blockwise", "mxfp8"]


@pytest.fixture
def operands() -> Iterator[SimpleNamespace]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    yield SimpleNamespace(x=normal(5, 40, 160), w=normal(144, 160), dy=normal(5, 40, 144))


@pytest.mark.parametrize("format", ["e4m3", "hybrid"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_products_are_of_rounded_operands(recipe: str, format: str, operands: SimpleNamespace) -> None:
    config = FP8Config(recipe=recipe, format=format)
    x, w = operands.x.clone().requires_grad_(), operands.w.clone().requires_grad_()
    y = _linear(Rounding(config), x, w)
    y.backward(operands.dy)
    # without a history, delayed scaling rounds as tensorwise does
    by_hand = Rounding(config)
    rows, dy = operands.x.flatten(0, 1), operands.dy.flatten(0, 1)
    forward = by_hand(rows, "input", 1).dequantise() @ by_hand(operands.w, "weight", 1).dequantise().t()
    dgrad = by_hand(dy, "gradient", 1).dequantise() @ by_hand(operands.w, "weight", 0).dequantise()
    wgrad = by_hand(dy, "gradient", 0).dequantise().t() @ by_hand(rows, "input", 0).dequantise()
    assert x.grad is not None and w.grad is not None
    for got, wanted, exact in (
        (y.detach().flatten(0, 1), forward, rows @ operands.w.t()),
        (x.grad.flatten(0, 1), dgrad, dy @ operands.w),
        (w.grad, wgrad, dy.t() @ rows),
    ):
        assert torch.equal(got, wanted)
        # E5M2's unit is 1/4 of a power of two, so that rounding is off by at most 1/8, and in most entries by less
        error = (got - exact).norm() / exact.norm()
        assert 1e-3 < error < 1 / 8


def test_bf16_products_are_summed_in_fp32(operands: SimpleNamespace) -> None:
    config = FP8Config(recipe="mxfp8")
    x, w = operands.x.bfloat16(), operands.w.bfloat16()
    wide = _linear(Rounding(config), x.float(), w.float())
    assert torch.equal(_linear(Rounding(config), x, w), wide.bfloat16())


@pytest.mark.parametrize("rows", [0, 1, 40])
@pytest.mark.parametrize("recipe", RECIPES)
def test_zeros_that_pad_an_experts_tokens_change_nothing(recipe: str, rows: int, operands: SimpleNamespace) -> None:
    """Transformer Engine needs multiples of 16 or 32 rows, which Megatron-core's experts pad to; the emulation none."""
    gradients, outputs, scales = [], [], []
    for padding in (0, -rows % 32 or 32):
        x, w, dy = (
            torch.cat([operands.x[0, :rows], torch.zeros(padding, 160)]).requires_grad_(),
            operands.w.clone().requires_grad_(),
            torch.cat([operands.dy[0, :rows], torch.zeros(padding, 144)]),
        )
        rounding = Rounding(FP8Config(recipe=recipe))
        y = _linear(rounding, x, w)
        y.backward(dy)
        assert x.grad is not None and w.grad is not None
        outputs.append(y[:rows])
        gradients.append((x.grad[:rows], w.grad))
        scales.append([scale.pending.item() for scale in rounding.delayed.values()])
    # sums of other lengths may round otherwise in fp32
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*gradients)
    assert scales[0] == scales[1] and gradients[0][1].isfinite().all()


def test_recorded_in_training_alone(operands: SimpleNamespace) -> None:
    rounding = Rounding(FP8Config(recipe="delayed"))
    with torch.no_grad():
        _linear(rounding, operands.x, operands.w.requires_grad_())
    assert [scale.pending.item() for scale in rounding.delayed.values()] == [0, 0, 0]
    _linear(rounding, operands.x, operands.w).backward(operands.dy)
    tops = [operands.x.abs().max().item(), operands.w.abs().max().item(), operands.dy.abs().max().item()]
    assert [scale.pending.item() for scale in rounding.delayed.values()] == tops


def test_a_model_without_its_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="no linear layer"):
        emulate_fp8(torch.nn.Linear(2, 2), FP8Config(recipe="mxfp8"))
