"""A recipe's whole correction: rejections first, then weights, with what they did."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megarl.drift.corrections.rejection import Rule
from megarl.drift.corrections.weights import TIS, IcePop


@dataclass(frozen=True)
class Corrected:
    """What a correction leaves.

    Attributes:
        weights_BT: fp32 importance weights, detached; 1 where there is no weighting, 0 outside `keep_BT`.
        keep_BT: bool, the tokens that are still trained.
        unusable_BT: bool, tokens whose engine log-prob is missing or not finite; never kept.
    """

    weights_BT: Tensor
    keep_BT: Tensor
    unusable_BT: Tensor


@dataclass(frozen=True)
class Correction:
    """Applies every rule to the same, unmodified batch: no rule sees what another dropped.

    Attributes:
        rules: rejections; a token must pass all.
        weighting: TIS, IcePop or None.
    """

    rules: Sequence[Rule] = ()
    weighting: TIS | IcePop | None = None

    def __call__(self, trainer_log_probs_BT: Tensor, rollout_log_probs_BT: Tensor, mask_BT: Tensor) -> Corrected:
        """Corrects one batch.

        Args:
            trainer_log_probs_BT: log old in decoupled mode, log policy in bypass mode; read where the mask is True.
            rollout_log_probs_BT: log-probs by the engine.
            mask_BT: bool, the generated tokens.
        """
        usable_BT = mask_BT & trainer_log_probs_BT.isfinite() & rollout_log_probs_BT.isfinite()
        delta_BT = torch.where(usable_BT, trainer_log_probs_BT.detach() - rollout_log_probs_BT, 0.0)
        keep_BT = usable_BT
        for rule in self.rules:
            keep_BT = keep_BT & rule(delta_BT, usable_BT)
        weights_BT = torch.ones_like(delta_BT) if self.weighting is None else self.weighting(delta_BT)
        return Corrected(torch.where(keep_BT, weights_BT, 0.0).float(), keep_BT, mask_BT & ~usable_BT)
