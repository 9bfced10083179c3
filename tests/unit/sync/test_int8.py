import pytest
import torch

from megarl.sync.int8 import Int8Source, quantise


class OneLayer:
    """A weight and an embedding."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.tensors = {"model.embed_tokens.weight": torch.ones(3, 2), "model.layers.0.mlp.up_proj.weight": weight}

    @property
    def export_specs(self):
        return [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in self.tensors.items()]

    def export(self):
        yield from self.tensors.items()


def test_every_weight_is_within_half_a_step_of_its_scale() -> None:
    weight = torch.randn(64, 48, generator=torch.Generator().manual_seed(3)) * torch.logspace(-6, 6, 64)[:, None]
    quantised, scales = quantise(weight)
    assert quantised.dtype == torch.int8 and scales.shape == (64, 1)
    # the row's largest is exact to rounding; an fp32 quotient can round to the other side by one part in 2^23
    assert ((quantised * scales - weight).abs() <= scales / 2 * (1 + 127 * 2.0**-22)).all()
    assert (quantised.abs().amax(dim=1) == 127).all()


def test_a_row_of_zeros_stays_zero_and_has_a_scale() -> None:
    quantised, scales = quantise(torch.zeros(2, 5))
    assert not quantised.any() and (scales == 1).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_no_integer_stands_for_is_refused(bad: float) -> None:
    weight = torch.ones(2, 2)
    weight[1, 0] = bad
    with pytest.raises(ValueError, match="NaN or an infinity"):
        quantise(weight)


def test_the_plan_is_what_comes() -> None:
    source = Int8Source(OneLayer(torch.randn(4, 2)))
    given = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in source.export()]
    assert given == source.export_specs
    assert [name for name, _, _ in given] == [
        "model.embed_tokens.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.up_proj.weight_scale",
    ]
