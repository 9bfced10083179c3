"""The load-balancing loss of a layer, sequence by sequence, so that no split of the batch changes its gradient."""

import torch
import torch.distributed as dist
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from torch import Tensor


def balance_loss(
    probs_NE: Tensor, chosen_NK: Tensor, sequences_N: Tensor, rows: int, group: dist.ProcessGroup
) -> Tensor:
    """sum over sequences of E sum_i f_i P_i, this rank's part of it; E experts, K of them a token.

    f_i is the share of the sequence's routed slots that expert i got, P_i the mean probability that its tokens gave i
    (DeepSeek-V3, 2412.19437, eq. 17 to 20, with the router's softmax for its sigmoid). It is 1 for a
    sequence whose tokens spread evenly. Padding counts in neither.

    Args:
        probs_NE: softmax of the gate logits.
        chosen_NK: the router's own choice.
        sequences_N: the sequence of each token, -1 for padding.
        rows: number of sequences.
        group: ranks that share the sequences' tokens. Collective over them.

    Returns:
        fp32 scalar; its gradient is that of the whole loss by this rank's tokens, to be added up over the group.
    """
    experts = probs_NE.shape[1]
    counts_RE = load_of(chosen_NK, sequences_N, rows, experts)
    if group.size() > 1:
        dist.all_reduce(counts_RE, group=group)
    # every token fills K slots
    tokens_R1 = (counts_RE.sum(1, keepdim=True) / chosen_NK.shape[1]).clamp(min=1)
    # row -1, the last, takes the padding
    mass_RE = probs_NE.new_zeros(rows + 1, experts).index_add(0, sequences_N % (rows + 1), probs_NE)[:rows]
    share_RE = counts_RE / (tokens_R1 * chosen_NK.shape[1])
    return experts * (share_RE * mass_RE / tokens_R1).sum()


def load_of(chosen_NK: Tensor, sequences_N: Tensor, rows: int, experts: int) -> Tensor:
    """How many tokens of each sequence go to each expert, fp32 [R, E]; padding goes to none."""
    flat = (sequences_N % (rows + 1))[:, None] * experts + chosen_NK
    counts = torch.bincount(flat.flatten(), minlength=(rows + 1) * experts)
    return counts.view(rows + 1, experts)[:rows].float()


def attach(activation: Tensor, loss: Tensor) -> Tensor:
    """The activation; in its backward pass the loss gets a gradient of the optimizer's loss scale.

    Megarl's forward steps return Megatron's triple under calculate_per_token_loss, so every gradient is a sum that
    finalize_model_grads divides by the trained tokens of the update batch: the loss must come multiplied by them.
    """
    attached: Tensor = MoEAuxLossAutoScaler.apply(activation, loss)
    return attached
