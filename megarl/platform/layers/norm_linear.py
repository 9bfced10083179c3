"""A norm and a column-parallel linear layer in one module, under Transformer Engine's names."""

from typing import Any

from megatron.core.tensor_parallel import ColumnParallelLinear
from torch import Tensor

from megarl.platform.layers.rms_norm import norm_weight, rms_norm


class LayerNormColumnParallelLinear(ColumnParallelLinear):  # type: ignore[misc]
    """RMSNorm, then ColumnParallelLinear; parameters `weight`, `bias` and `layer_norm_weight`.

    The names are TELayerNormColumnParallelLinear's, so that a model has one state dict on a CPU and on a GPU: its
    checkpoints and the maps of the Hugging Face bridges fit both. The class's name counts too: megatron-bridge tells
    from it how the weight is sharded.

    Args:
        input_size: size of the normalised dimension.
        output_size: rows of the weight, over all tensor-parallel ranks.
        config: Megatron's TransformerConfig.
        kwargs: ColumnParallelLinear's.

    Raises:
        ValueError: the config's normalization is not RMSNorm.
    """

    def __init__(self, input_size: int, output_size: int, *, config: Any, **kwargs: Any) -> None:
        if config.normalization != "RMSNorm":
            raise ValueError(f"normalization={config.normalization!r} has no fused local layer; use 'RMSNorm'.")
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.eps = config.layernorm_epsilon
        self.layer_norm_weight = norm_weight(config, input_size)

    def forward(self, input_: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """[s, b, h], be it an fp32 residual stream, to ([s, b, output_size / tp], bias where the caller adds it)."""
        output: tuple[Tensor, Tensor | None] = super().forward(self._normed(input_), *args, **kwargs)
        return output

    def _normed(self, input_: Tensor) -> Tensor:
        return rms_norm(input_, self.layer_norm_weight, self.eps).to(self.layer_norm_weight.dtype)
