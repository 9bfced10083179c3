"""RMSNorm that knows of sequence parallelism."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, arXiv:1910.07467).

    Args:
        x: [..., h], floating point; the arithmetic is in float32, or in float64 for float64.
        weight: [h].
        eps: added to the mean square.

    Returns:
        [..., h] in x's dtype.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return F.rms_norm(x.to(wide), weight.shape, weight.to(wide), eps).to(x.dtype)


def norm_weight(config: Any, size: int) -> torch.nn.Parameter:
    """A norm's weight, ones of shape [size] in `config.params_dtype`, marked as Transformer Engine marks it.

    Under sequence parallelism each rank sees a part of the tokens; the mark makes Megatron sum the gradient over the
    tensor-parallel ranks.

    Raises:
        ValueError: the config asks for a weight that is stored as an offset from 1.
    """
    if config.layernorm_zero_centered_gamma:
        raise ValueError("layernorm_zero_centered_gamma=True needs Transformer Engine; this RMSNorm stores the weight.")
    weight: Any = torch.nn.Parameter(torch.ones(size, dtype=config.params_dtype, device=torch.cuda.current_device()))
    weight.sequence_parallel = config.sequence_parallel
    return weight  # type: ignore[no-any-return]


class RMSNorm(torch.nn.Module):
    """Megatron's WrappedTorchNorm without its refusal of sequence parallelism.

    Args:
        config: Megatron's TransformerConfig.
        hidden_size: size of the last dimension.
        eps: added to the mean square.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = norm_weight(config, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[..., h] to [..., h], in the weight's dtype, which an fp32 residual stream need not have."""
        return rms_norm(x, self.weight, self.eps).to(self.weight.dtype)
