"""GRPO's group-relative advantage (Shao et al. 2024, 2402.03300, section 4.1.2): (R - mean) / (std + 1e-6)."""

from collections.abc import Sequence

import torch
from torch import Tensor

STD_EPSILON = 1e-6


def grpo_advantages(rewards_B: Tensor, prompt_ids: Sequence[str]) -> Tensor:
    """Rewards standardised within the group of their prompt.

    Groups are formed by prompt identity, never by position, so interleaved and partial groups are right. The
    standard deviation is the unbiased one. A group of one, or of equal rewards, gets 0.

    Args:
        rewards_B: one reward a response.
        prompt_ids: identity of each response's prompt.

    Returns:
        fp32 advantages [B].

    Raises:
        ValueError: lengths differ.
    """
    if len(prompt_ids) != len(rewards_B):
        raise ValueError(f"{len(rewards_B)} rewards but {len(prompt_ids)} prompt ids")
    rows: dict[str, list[int]] = {}
    for row, prompt_id in enumerate(prompt_ids):
        rows.setdefault(prompt_id, []).append(row)
    advantages_B = torch.zeros_like(rewards_B, dtype=torch.float32)
    for members in rows.values():
        group = rewards_B[members].double()
        # max == min, not std == 0: equal rewards such as .1 leave rounding in the mean and a std of 1e-17
        if len(members) > 1 and group.max() > group.min():
            advantages_B[members] = ((group - group.mean()) / (group.std() + STD_EPSILON)).float()
    return advantages_B
