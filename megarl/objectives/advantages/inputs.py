"""What an advantage estimator reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rewarded:
    """A whole step's responses, over all ranks, with their rewards. B responses, T positions.

    Attributes:
        rewards_B: reward of each response.
        prompt_ids: identity of each response's prompt; groups are formed by it, never by position.
        mask_BT: bool, the response's tokens that are trained; False on prompts, padding, tool output.
        valid_B: bool, False for responses that were rejected: they enter no sibling's baseline and no statistic.
        token_penalties_BT: what each token costs, such as beta * k1 of it; None for none.
        baselines_B: reward of the greedy response to the same prompt, for ReMax.
        gamma: discount a token, for REINFORCE++'s returns.
    """

    rewards_B: Tensor
    prompt_ids: Sequence[str]
    mask_BT: Tensor
    valid_B: Tensor
    token_penalties_BT: Tensor | None = None
    baselines_B: Tensor | None = None
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if not len(self.prompt_ids) == len(self.rewards_B) == len(self.mask_BT) == len(self.valid_B):
            raise ValueError(
                f"{len(self.rewards_B)} rewards, {len(self.prompt_ids)} prompt ids, {len(self.mask_BT)} masks and "
                f"{len(self.valid_B)} validities must be of one length"
            )

    def penalised_rewards(self) -> Tensor:
        """Rewards less the sum of their tokens' penalties, fp64 [B]: what whole-response estimators compare."""
        rewards_B = self.rewards_B.double()
        if self.token_penalties_BT is None:
            return rewards_B
        return rewards_B - self.masked_penalties().sum(dim=1)

    def masked_penalties(self) -> Tensor:
        """Token penalties, 0 outside the mask, fp64 [B, T]."""
        if self.token_penalties_BT is None:
            return torch.zeros(self.mask_BT.shape, dtype=torch.float64, device=self.mask_BT.device)
        return torch.where(self.mask_BT, self.token_penalties_BT.double(), 0.0)

    def groups(self) -> list[list[int]]:
        """Rows of the valid responses of each prompt, in the order of the prompts' first rows."""
        rows: dict[str, list[int]] = {}
        for row, (prompt_id, valid) in enumerate(zip(self.prompt_ids, self.valid_B.tolist(), strict=True)):
            if valid:
                rows.setdefault(prompt_id, []).append(row)
        return list(rows.values())

    def on_tokens(self, advantages_B: Tensor) -> Tensor:
        """One advantage a response, on each of its tokens: fp32 [B, T], 0 outside the mask and for rejected ones."""
        trained_BT = self.mask_BT & self.valid_B[:, None]
        return torch.where(trained_BT, advantages_B.float()[:, None], 0.0)


Estimator = Callable[[Rewarded], Tensor]
"""Returns fp32 advantages [B, T], 0 outside the mask and for rejected responses."""
