"""Recipe sections of the policy loss: the objective, the KL term, entropy, and the correction for the engine."""

from dataclasses import dataclass
from typing import Any, Optional

from megarl.config.fields import key


@dataclass
class ObjectiveConfig:
    """The policy loss. A key that is null has the objective's own default; one that it does not read is refused."""

    name: str = key("grpo", "A registered objective (see docs/objectives.md) or the dotted path of one.")
    clip_low: Optional[float] = key(None, "The ratio is clipped below at 1 - clip_low.", low=0, high=1)
    clip_high: Optional[float] = key(None, "The ratio is clipped above at 1 + clip_high.", low=0)
    dual_clip: Optional[float] = key(
        None, "Largest ratio that a token with a negative advantage pays for (ppo, grpo, dapo, dr_grpo).", above=1
    )
    ratio_low: Optional[float] = key(None, "Smallest ratio that keeps its gradient (k2_5).", low=0, high=1)
    ratio_high: Optional[float] = key(None, "Largest ratio that keeps its gradient (k2_5).", low=1)
    tau: Optional[float] = key(None, "Weight of the squared log-ratio (k2_5).", low=0)
    delta: Optional[float] = key(
        None, "Largest change of a token's probability in its advantage's direction (dppo_tv).", above=0, high=1
    )
    cov_share: Optional[float] = key(
        None, "Share of an update's tokens that is selected by covariance (clip_cov, kl_cov).", above=0, high=1
    )
    cov_low: Optional[float] = key(
        None, "Smallest covariance of log-prob and advantage that is selected from (clip_cov).", low=0
    )
    cov_high: Optional[float] = key(None, "Largest covariance that is selected from (clip_cov).", above=0)
    beta: Optional[float] = key(
        None, "Weight of the distance from the old policy, in nats, of a selected token (kl_cov).", above=0
    )
    normalisation: str = key(
        "token_mean",
        "How token terms become one number; see docs/objectives.md.",
        choices=("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"),
    )
    normalisation_constant: Optional[int] = key(
        None, "Tokens that seq_mean_token_sum_norm divides a response by; null for rollout.max_new_tokens.", low=1
    )
    options: dict[str, Any] = key(factory=dict, doc="Settings of an objective given by its dotted path.")


@dataclass
class KLConfig:
    """The pull towards the reference, which is the policy that RL starts from."""

    coefficient: float = key(
        0.001, "Weight of the KL estimate, per nat a token; 0 only measures the KL of the sampled tokens.", low=0
    )
    estimator: str = key(
        "k3",
        "k1, k2 or k3 of the sampled token, or 'full', over the whole vocabulary; see docs/objectives.md.",
        choices=("k1", "k2", "k3", "full"),
    )
    placement: str = key("loss", "Where the estimate goes.", choices=("loss", "reward"))
    allow_k1_in_loss: bool = key(
        False, "Lets k1 into the loss, where the expectation of its gradient is zero: it only adds noise."
    )
    allow_k3_in_reward: bool = key(
        False, "Silences the warning about k3 in the reward, whose heavy tail lets one rare token outweigh the rest."
    )
    importance_weighted: bool = key(
        False,
        "Multiplies the term in the loss by policy / old, for off-policy responses; by policy / engine with "
        "rl.correction.mode=bypass.",
    )
    cap: Optional[float] = key(
        None, "Bound on the gradient coefficient of a token's term in the loss; k3's explodes on rare tokens.", above=0
    )
    target: Optional[float] = key(
        None, "KL, in nats a token, that the coefficient is steered to; null keeps it fixed.", above=0
    )
    horizon: int = key(10000, "Responses over which a steered coefficient moves by its share of error.", low=1)


@dataclass
class EntropyConfig:
    """Exploration: a bonus, and an alarm when it collapses."""

    coefficient: float = key(0.0, "Weight of the entropy bonus, per nat a token.", low=0)
    alarm_share: Optional[float] = key(
        None,
        "The alarm goes off when entropy falls below this share of its mean over the first 5 steps.",
        above=0,
        high=1,
    )
    alarm_action: str = key(
        "warn",
        "'warn' notes it once, 'stop' ends the run with a checkpoint, 'raise_clip' raises the objective's clip_high.",
        choices=("warn", "stop", "raise_clip"),
    )
    alarm_clip_factor: float = key(
        1.1, "raise_clip: what clip_high is multiplied by each step that the alarm goes off.", above=1
    )
    alarm_clip_max: Optional[float] = key(None, "Largest clip_high, which alarm_action=raise_clip needs.", above=0)


@dataclass
class CorrectionConfig:
    """What is done about the difference between the engine's distribution and the trainer's."""

    mode: str = key(
        "none",
        "'decoupled' compares the trainer's policy before the update with the engine; 'bypass' compares the policy "
        "that is trained, and takes the engine's log-probs for the old ones.",
        choices=("none", "decoupled", "bypass"),
    )
    weighting: str = key("none", "Importance weights on the tokens.", choices=("none", "tis", "icepop"))
    cap: float = key(2.0, "tis: largest weight, at least 1.", above=0)
    low: float = key(0.5, "icepop: ratios below it weigh 0.", low=0)
    high: float = key(5.0, "icepop: ratios above it weigh 0.", above=0)
    reject_token: Optional[list[float]] = key(None, "[low, high] of a token's ratio, outside which it is dropped.")
    reject_sequence: Optional[list[float]] = key(None, "[low, high] of a response's ratio, e^(sum of log-ratios).")
    reject_geometric: Optional[list[float]] = key(None, "[low, high] of e^(mean log-ratio) of a response.")
    reject_k3: Optional[float] = key(None, "Largest mean k3 of a response, in nats a token.", above=0)
    veto: Optional[float] = key(None, "A response with any token ratio below it is dropped.", above=0, high=1)
    opsm: Optional[float] = key(
        None, "A response with a negative advantage is dropped once mean log(old / policy) exceeds it.", low=0
    )
    normalise: str = key("all", "Whether dropped tokens still count in the denominators.", choices=("all", "kept"))


@dataclass
class OverlongConfig:
    """What is done about responses that run into the length limit."""

    buffer_tokens: int = key(
        0, "Last tokens before rollout.max_new_tokens over which the penalty rises; 0 for none.", low=0
    )
    penalty: float = key(1.0, "Reward lost by a response that fills the buffer (DAPO's soft overlong penalty).", low=0)
    filter: bool = key(False, "Whether truncated responses are left out of the loss.")


@dataclass
class DynamicSamplingConfig:
    """Replaces prompts whose responses all got the same reward (DAPO)."""

    enabled: bool = key(False, "Whether uniform groups are replaced until the batch is full.")
    max_batches: int = key(10, "Batches that a step may draw before it is an error.", low=1)
