"""Megatron-core's layers on arithmetic that does not depend on the batch: see `megarl.platform.invariant`.

They compute what the layers of the other specs do, under the same parameter names, and bring the rotary embedding with
them: Megatron-core's forms sines over whatever positions a batch has.
"""

from typing import Any

import torch
from megatron.core.tensor_parallel import RowParallelLinear, scatter_to_sequence_parallel_region
from torch import Tensor

from megarl.platform.invariant.attention import attention
from megarl.platform.invariant.linear import linear, linear_over_ranks
from megarl.platform.invariant.rotary import Rotary
from megarl.platform.invariant.rows import rms_norm
from megarl.platform.layers.attention import CoreAttention
from megarl.platform.layers.column_input import whole_input
from megarl.platform.layers.norm_linear import LayerNormColumnParallelLinear
from megarl.platform.layers.rms_norm import RMSNorm

_MARK = "megarl_invariant_rotary"


def make_invariant(config: Any, rotary: Rotary) -> None:
    """Notes on a TransformerConfig that its model is batch-invariant, and what its attention turns by."""
    setattr(config, _MARK, rotary)


def invariant_rotary(config: Any) -> Rotary | None:
    """What was noted; None for a model that is not batch-invariant, a user's own included."""
    rotary: Rotary | None = getattr(config, _MARK, None)
    return rotary


class InvariantNormColumnParallelLinear(LayerNormColumnParallelLinear):
    """RMSNorm, then ColumnParallelLinear."""

    def _normed(self, input_: Tensor) -> Tensor:
        return rms_norm(input_, self.layer_norm_weight, self.eps)

    def _forward_impl(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        allreduce_dgrad: bool = False,
        sequence_parallel: bool = False,
        tp_group: Any = None,
        **_: Any,
    ) -> Tensor:
        return linear(
            whole_input(input, tp_group, is_split=sequence_parallel, adds_gradients=allreduce_dgrad), weight, bias
        )


class InvariantRowParallelLinear(RowParallelLinear):  # type: ignore[misc]
    """RowParallelLinear without a bias, whose ranks' sums are added before they are rounded."""

    def forward(self, input_: Tensor) -> tuple[Tensor, None]:
        """[s, b, k / tensor] to ([s, b, m], or this rank's part of s under sequence parallelism; no bias)."""
        output = linear_over_ranks(input_, self.weight, self.tp_group)
        return (scatter_to_sequence_parallel_region(output) if self.sequence_parallel else output), None


class InvariantRMSNorm(RMSNorm):
    """RMSNorm over the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] to [..., h], in the weight's dtype."""
        return rms_norm(x, self.weight, self.eps)


class InvariantAttention(CoreAttention):
    """CoreAttention on queries and keys that the rotary embedding has not turned yet."""

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        rotary = invariant_rotary(self.config)
        assert rotary is not None and causal
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        places_S = torch.arange(key.size(0), device=key.device)
        positions_T = self._positions(query, key)
        output = attention(
            rotary.turn(q, positions_T),
            rotary.turn(k, places_S),
            v,
            places_S <= positions_T[:, None],
            self.scale,
            rotary.context,
        )
        return output.permute(2, 0, 1, 3).flatten(2)
