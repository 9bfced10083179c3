"""Token- and sequence-level drift between the trainer's log-probs and the engine's, before any truncation.

Delta = log trainer - log rollout at the token that the engine sampled, in nats. Statistics are formed in fp64.
"""

import torch
from torch import Tensor

RATIO_BAND = (0.9, 1.1)
QUANTILES = {"abs_p50": 0.5, "abs_p90": 0.9, "abs_p99": 0.99, "abs_p999": 0.999}


def drift_metrics(trainer_log_probs_BT: Tensor, rollout_log_probs_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """The drift of one batch of rollouts.

    Args:
        trainer_log_probs_BT: log-prob of each token by the trainer, at the weights that the engine was given.
        rollout_log_probs_BT: log-prob that the engine reported; a token without a finite one is left out and counted.
        mask_BT: bool, the generated tokens.

    Returns:
        `tokens` and `tokens_without_log_prob` (counts); `abs_mean`, `abs_max` and quantiles of |Delta| (nats);
        `outside_band_share` of ratios e^Delta outside [0.9, 1.1]; `k1` and `k3` estimates of KL(rollout || trainer)
        (nats a token); `ess_share`, the effective sample size of the sequence weights e^(sum Delta) as a share of the
        responses. Only the two counts where no token has a log-prob.
    """
    finite_BT = mask_BT & trainer_log_probs_BT.isfinite() & rollout_log_probs_BT.isfinite()
    counts = {
        "tokens": float(mask_BT.sum()),
        "tokens_without_log_prob": float((mask_BT & ~finite_BT).sum()),
    }
    if not finite_BT.any():
        return counts
    zero = torch.zeros((), dtype=torch.float64, device=mask_BT.device)
    delta_BT = torch.where(finite_BT, trainer_log_probs_BT.double() - rollout_log_probs_BT.double(), zero)
    delta_N = delta_BT[finite_BT]
    absolute_N = delta_N.abs().sort().values
    ratio_N = delta_N.exp()
    outside_N = (ratio_N < RATIO_BAND[0]) | (ratio_N > RATIO_BAND[1])
    return counts | {
        "abs_mean": absolute_N.mean().item(),
        "abs_max": absolute_N[-1].item(),
        **{name: _sorted_quantile(absolute_N, q) for name, q in QUANTILES.items()},
        "outside_band_share": outside_N.double().mean().item(),
        "k1": -delta_N.mean().item(),
        "k3": (torch.expm1(delta_N) - delta_N).mean().item(),
        "ess_share": _effective_share(delta_BT.sum(dim=1)[finite_BT.any(dim=1)]),
    }


def _sorted_quantile(sorted_N: Tensor, q: float) -> float:
    """The smallest value with at least a share q of the values at or below it (torch.quantile refuses 2^24 values)."""
    index = max(0, -int(-q * len(sorted_N) // 1) - 1)
    return sorted_N[index].item()


def _effective_share(log_weights_B: Tensor) -> float:
    """(sum w)^2 / (B sum w^2), formed from log-weights so that no weight overflows."""
    log_sum = torch.logsumexp(log_weights_B, dim=0)
    log_sum_of_squares = torch.logsumexp(2 * log_weights_B, dim=0)
    return min(1.0, (2 * log_sum - log_sum_of_squares).exp().item() / len(log_weights_B))
