"""The one place where per-token losses become one number.

The global loss is sum(weight * token_loss) / N, with N the trained tokens of the whole update batch, over all
ranks and micro-batches. Megatron-core divides by N itself (`calculate_per_token_loss`), so what is formed here are
the weights. They depend on global counts alone: any split of the batch gives the same gradient.

    token_mean               every token of the batch alike
    seq_mean_token_mean      every response alike, and within it every token
    seq_mean_token_sum       mean over responses of their token sums: a long response weighs more
    seq_mean_token_sum_norm  the same, divided by a constant number of tokens (Dr. GRPO, 2503.20783)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MODES = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm")


@dataclass(frozen=True)
class Normalisation:
    """How token losses are weighed.

    Attributes:
        mode: one of MODES.
        constant: tokens that 'seq_mean_token_sum_norm' divides a response by.
    """

    mode: str = "token_mean"
    constant: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"normalisation mode {self.mode!r} is none of {', '.join(MODES)}")
        if (self.constant is None) == (self.mode == "seq_mean_token_sum_norm"):
            raise ValueError(f"normalisation mode {self.mode!r} with constant {self.constant}")

    def weights(self, mask_BT: Tensor, total_tokens: int, total_responses: int) -> Tensor:
        """Weight of each token's loss.

        Args:
            mask_BT: bool, the trained tokens of these responses; a response must not be split over calls.
            total_tokens: trained tokens of the update batch, over all ranks.
            total_responses: responses of the update batch with at least one trained token, over all ranks.

        Returns:
            fp32 weights [B, T], 0 outside the mask.
        """
        if self.mode == "token_mean":
            return mask_BT.float()
        a_response = total_tokens / max(total_responses, 1)
        if self.mode == "seq_mean_token_sum":
            return mask_BT.float() * a_response
        if self.constant is not None:
            return mask_BT.float() * (a_response / self.constant)
        return mask_BT.float() * (a_response / mask_BT.sum(dim=1, keepdim=True).clamp(min=1))


def weighted_sum(loss_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """sum(weight * loss), a scalar in fp32; a weight of 0 hides its token whatever the loss holds there."""
    return torch.where(weights_BT > 0, loss_BT.float() * weights_BT, torch.zeros_like(weights_BT)).sum()
