"""Recipe sections for the two training phases."""

from dataclasses import dataclass, field
from typing import Optional

from megarl.config.asynchrony import AsynchronyConfig
from megarl.config.fields import key
from megarl.config.names import KNOWN_ADVANTAGES
from megarl.config.objective import (
    CorrectionConfig,
    DynamicSamplingConfig,
    EntropyConfig,
    KLConfig,
    ObjectiveConfig,
    OverlongConfig,
)


@dataclass
class OptimizerConfig:
    """AdamW with a linear schedule, through Megatron-core's optimizer and scheduler."""

    lr: float = key(1e-3, "Peak learning rate.", above=0)
    min_lr_ratio: float = key(0.1, "Last learning rate as a share of the peak.", low=0, high=1)
    warmup_steps: int = key(0, "Optimizer steps over which the rate rises from 0.", low=0)
    beta1: float = key(0.9, "AdamW's first decay rate.", low=0, high=0.9999999)
    beta2: float = key(0.95, "AdamW's second decay rate.", low=0, high=0.9999999)
    eps: float = key(1e-8, "AdamW's epsilon.", above=0)
    weight_decay: float = key(0.0, "Decoupled weight decay; norms and biases have none.", low=0)
    clip_grad: float = key(1.0, "Largest global gradient norm; 0 turns clipping off.", low=0)


@dataclass
class SFTConfig:
    """Supervised warm start on the source's demonstrations."""

    steps: int = key(0, "Optimizer steps; 0 skips the phase.", low=0)
    batch_size: int = key(32, "Demonstrations an optimizer step, over all ranks.", low=1, high=10**6)
    micro_batch_size: int = key(32, "Demonstrations a rank runs at once, padded to the longest of the batch.", low=1)
    micro_batch_tokens: Optional[int] = key(
        None,
        "Packs demonstrations end to end, into micro-batches of at most so many tokens a rank, in place of "
        "micro_batch_size.",
        low=1,
    )
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


@dataclass
class CriticConfig:
    """The value function, for rl.advantage=gae."""

    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    gae_lambda: float = key(1.0, "Lambda of generalised advantage estimation.", low=0, high=1)
    clip_value: float = key(0.2, "How far a value may move from its old one before its loss is clipped.", above=0)
    warmup_steps: int = key(0, "First RL steps in which the critic alone is trained.", low=0)


@dataclass
class RLConfig:
    """Reinforcement learning: rollouts, rewards, advantages, updates."""

    steps: int = key(60, "Steps; each rolls out one batch and trains on it.", low=0)
    prompts_per_step: int = key(16, "Prompts a step.", low=1, high=10**6)
    samples_per_prompt: int = key(16, "Responses a prompt (the group).", low=1, high=10**6)
    updates_per_step: int = key(1, "Optimizer steps on one batch of rollouts.", low=1)
    micro_batch_size: int = key(64, "Responses a rank runs at once, padded to the longest of the batch.", low=1)
    micro_batch_tokens: Optional[int] = key(
        None,
        "Packs responses and their prompts end to end, into micro-batches of at most so many tokens a rank, in place "
        "of micro_batch_size.",
        low=1,
    )
    advantage: str = key("grpo", "Advantage estimator (see docs/objectives.md).", choices=KNOWN_ADVANTAGES)
    routing_replay: str = key(
        "none",
        "Of a model with experts: 'measure' compares the engine's expert ids with the trainer's, 'experts' sends the "
        "policy's tokens to them, 'weights' takes the values of the engine's gates too (see docs/moe.md).",
        choices=("none", "measure", "experts", "weights"),
    )
    gamma: float = key(
        1.0, "Discount a token, of the returns of reinforce_pp, its baseline form and gae.", above=0, high=1
    )
    critic: CriticConfig = field(default_factory=CriticConfig)
    measure_reference: bool = key(
        True,
        "Score each batch under the starting policy too, for kl/reference_*; a KL term does so anyway.",
    )
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    kl: KLConfig = field(default_factory=KLConfig)
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    overlong: OverlongConfig = field(default_factory=OverlongConfig)
    dynamic_sampling: DynamicSamplingConfig = field(default_factory=DynamicSamplingConfig)
    asynchrony: AsynchronyConfig = field(default_factory=AsynchronyConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    @property
    def rollouts_per_step(self) -> int:
        """Responses that one step trains on, over all ranks."""
        return self.prompts_per_step * self.samples_per_prompt
