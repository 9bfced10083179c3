"""What every measure of drift starts from: the log-ratios of a batch's tokens, and what becomes of a measure."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Measures = Mapping[str, Tensor]
"""Measures by name, fp64 scalars that are still on the device; NaN for a mean over nothing."""


@dataclass(frozen=True)
class LogRatios:
    """The N tokens, of R responses, of which both sides gave a finite log-prob. All fp64, in nats.

    Attributes:
        log_ratio_N: log trainer - log rollout of each token, response by response.
        trainer_N: its log-prob by the trainer.
        rollout_N: by the engine.
        position_N: int64, its place among its response's generated tokens, from 0.
        sum_R: sum of a response's log-ratios.
        mean_R: their mean, over the tokens that are compared.
        trainer_mean_R: mean of its log-probs by the trainer.
        rollout_mean_R: by the engine.
        compared_BT: bool, which tokens of the batch they are.
    """

    log_ratio_N: Tensor
    trainer_N: Tensor
    rollout_N: Tensor
    position_N: Tensor
    sum_R: Tensor
    mean_R: Tensor
    trainer_mean_R: Tensor
    rollout_mean_R: Tensor
    compared_BT: Tensor

    @staticmethod
    def of(trainer_log_probs_BT: Tensor, rollout_log_probs_BT: Tensor, mask_BT: Tensor) -> "LogRatios":
        """Compares the log-probs, of any float dtype, where the bool mask is True; elsewhere they are not read."""
        compared_BT = mask_BT & trainer_log_probs_BT.isfinite() & rollout_log_probs_BT.isfinite()
        trainer_BT = torch.where(compared_BT, trainer_log_probs_BT, 0.0).double()
        rollout_BT = torch.where(compared_BT, rollout_log_probs_BT, 0.0).double()
        tokens_B = compared_BT.sum(dim=1)
        rows_R = tokens_B.nonzero()[:, 0]
        tokens_R = tokens_B[rows_R]
        places_N = compared_BT.flatten().nonzero()[:, 0]
        sum_R = (trainer_BT - rollout_BT).sum(dim=1)[rows_R]
        trainer_N, rollout_N = trainer_BT.flatten()[places_N], rollout_BT.flatten()[places_N]
        return LogRatios(
            log_ratio_N=trainer_N - rollout_N,
            trainer_N=trainer_N,
            rollout_N=rollout_N,
            position_N=mask_BT.cumsum(dim=1).flatten()[places_N] - 1,
            sum_R=sum_R,
            mean_R=sum_R / tokens_R,
            trainer_mean_R=trainer_BT.sum(dim=1)[rows_R] / tokens_R,
            rollout_mean_R=rollout_BT.sum(dim=1)[rows_R] / tokens_R,
            compared_BT=compared_BT,
        )


def k3_terms(log_ratio_N: Tensor) -> Tensor:
    """e^D - 1 - D, whose mean estimates KL(rollout || trainer); never below 0, infinite for D above 709."""
    # rounding takes e^D - 1 below D where D is tiny
    return (torch.expm1(log_ratio_N) - log_ratio_N).clamp(min=0.0)


def numbers(measures: Measures) -> dict[str, float]:
    """The measures as floats, by one copy from the device.

    A mean over nothing is left out. What is beyond the range of fp64 is its largest number, about 1.8e308, so that a
    bound on it is crossed and it can be written down.
    """
    if not measures:
        return {}
    values = torch.stack([value.double() for value in measures.values()]).clamp(max=sys.float_info.max).tolist()
    # NaN alone differs from itself
    return {name: value for name, value in zip(measures, values, strict=True) if value == value}
