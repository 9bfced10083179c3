"""The one place where per-token losses become one number.

The global loss is sum(weight * token_loss) / N, with N the trained tokens of the whole update batch, over all
ranks and micro-batches. Megatron-core divides by N itself (`calculate_per_token_loss`), so what is formed here are
the weights. They depend on global counts alone: any split of the batch gives the same gradient.
"""

import torch
from torch import Tensor

MODES = ("token_mean", "seq_mean_token_mean")


def token_weights(mask_BT: Tensor, mode: str, total_tokens: int, total_responses: int) -> Tensor:
    """Weight of each token's loss.

    Args:
        mask_BT: bool, the trained tokens of these responses; a response must not be split over calls.
        mode: 'token_mean' (every token of the batch counts alike) or 'seq_mean_token_mean' (every response counts
            alike, and within it every token).
        total_tokens: trained tokens of the update batch, over all ranks.
        total_responses: responses of the update batch with at least one trained token, over all ranks.

    Returns:
        fp32 weights [B, T], 0 outside the mask; they sum to total_tokens over the update batch.

    Raises:
        ValueError: an unknown mode.
    """
    if mode == "token_mean":
        return mask_BT.float()
    if mode == "seq_mean_token_mean":
        tokens_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
        return mask_BT.float() * (total_tokens / max(total_responses, 1) / tokens_B1)
    raise ValueError(f"normalisation mode {mode!r} is none of {', '.join(MODES)}")


def weighted_sum(loss_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """sum(weight * loss), a scalar in fp32; a weight of 0 hides its token whatever the loss holds there."""
    return torch.where(weights_BT > 0, loss_BT.float() * weights_BT, torch.zeros_like(weights_BT)).sum()
