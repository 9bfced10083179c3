"""Dr. GRPO (Liu et al. 2025, 2503.20783, section 3.2): GRPO without its length and difficulty biases.

    max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)),   r = policy / old

Defaults: clip 0.2 and 0.2. Its advantage is 'dr_grpo' (R - mean, no division by the standard deviation) and its
normalisation 'seq_mean_token_sum_norm' (sums over tokens, divided by a constant). At r = 1 the gradient is
-A grad log policy.
"""

from dataclasses import dataclass

from megarl.objectives.ppo import PPO


@dataclass(frozen=True)
class DrGRPO(PPO):
    """PPO's surrogate; advantage and normalisation make it Dr. GRPO."""
