"""The addition to an fp32 residual stream."""

from collections.abc import Callable

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from torch import Tensor

Add = Callable[[tuple[Tensor, Tensor | None], Tensor, float], Tensor]


def fp32_bias_dropout_add(training: bool, fused: bool) -> Add:
    """Megatron-core's get_bias_dropout_add for `fp32_residual_connection`.

    Megatron-core 0.16's own converts the residual to the layer's dtype, which makes it a 16-bit stream from the first
    layer on; here the layer's output is converted instead, as in 0.19.
    """
    add: Add = get_bias_dropout_add(training, fused)

    def widened(output_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, dropout: float) -> Tensor:
        output, bias = output_with_bias
        return add((output.to(residual.dtype), None if bias is None else bias.to(residual.dtype)), residual, dropout)

    return widened
