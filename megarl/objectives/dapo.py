"""DAPO (Yu et al. 2025, 2503.14476, eq. 8 and 10): the clipped surrogate with a higher upper bound ('clip-higher').

    max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)),   r = policy / old

Defaults: clip 0.2 and 0.28. The rest of DAPO is not in the loss: 'token_mean' over the batch, dynamic sampling, the
soft overlong penalty and no KL. At r = 1 the gradient is -A grad log policy.
"""

from dataclasses import dataclass

from megarl.objectives.ppo import PPO


@dataclass(frozen=True)
class DAPO(PPO):
    """PPO's surrogate with the paper's clip bounds."""

    clip_high: float = 0.28
