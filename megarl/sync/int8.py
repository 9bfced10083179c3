"""INT8 made on the trainer's side, for an engine that takes quantised weights and makes none itself.

Each row of a linear layer's weight has a scale of its own, largest |w| / 127 (symmetric, per output channel); the
engine quantises activations by token as it goes (vector-wise W8A8: LLM.int8(), 2208.07339, section 3.1, without the
outliers that it keeps apart).
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from megarl.megatron.export_plan import Spec

_LARGEST = 127
_SCALE = "_scale"


class WeightSource(Protocol):
    """What weights are taken from; see `megarl.megatron.policy.FrozenModel`."""

    @property
    def export_specs(self) -> Sequence[Spec]:
        """Names, shapes and dtypes of what `export` gives, in its order. Collective the first time."""

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor under its Hugging Face name. Collective."""


class Int8Source:
    """The weights of another source, linear layers in INT8 with a scale a row."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source

    @property
    def export_specs(self) -> Sequence[Spec]:
        """See `WeightSource`."""
        specs: list[Spec] = []
        for name, shape, dtype in self._source.export_specs:
            if is_linear(name):
                specs.append((name, shape, torch.int8))
                specs.append((name + _SCALE, (shape[0], 1), torch.float32))
            else:
                specs.append((name, shape, dtype))
        return specs

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """See `WeightSource`."""
        for name, tensor in self._source.export():
            if is_linear(name):
                quantised, scales = quantise(tensor)
                yield name, quantised
                yield name + _SCALE, scales
            else:
                yield name, tensor


def is_linear(name: str) -> bool:
    """Whether a Hugging Face tensor is a linear layer's weight, and neither embedding nor head nor router."""
    return name.endswith("_proj.weight")


def quantise(weight_OI: Tensor) -> tuple[Tensor, Tensor]:
    """The weight as int8 [O, I] and fp32 scales [O, 1]; their product is off by half a scale at most.

    A row of zeros has scale 1. NaN and infinities are refused, as no integer stands for them.

    Raises:
        ValueError: the weight holds NaN or an infinity.
    """
    if not weight_OI.isfinite().all():
        raise ValueError("a weight holds NaN or an infinity, which INT8 has no number for")
    wide = weight_OI.float()
    scales_O1 = wide.abs().amax(dim=1, keepdim=True) / _LARGEST
    scales_O1 = scales_O1.where(scales_O1 > 0, 1.0)
    return (wide / scales_O1).round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8), scales_O1
