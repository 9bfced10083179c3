"""GRPO (Shao et al. 2024, 2402.03300, eq. 3): PPO's clipped surrogate on group-relative advantages.

    max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)),   r = policy / old

Defaults: clip 0.2 and 0.2. The paper's KL term, 0.04 k3(policy, reference), is `rl.kl`; its advantage is 'grpo' and its
normalisation 'seq_mean_token_mean'. At r = 1 the gradient is -A grad log policy.
"""

from dataclasses import dataclass

from megarl.objectives.ppo import PPO


@dataclass(frozen=True)
class GRPO(PPO):
    """PPO's surrogate; the advantage makes it GRPO."""
