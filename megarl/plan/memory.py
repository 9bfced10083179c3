"""The memory of one rank, part by part, over a phase of a run."""

from dataclasses import dataclass

from megarl.plan.activations import head_bytes, in_flight, logits_bytes, recomputed_bytes
from megarl.plan.parameters import whole_model
from megarl.plan.shape import Batch, Layout, Numerics, Shape
from megarl.plan.state import frozen_weights, trained_state

_SAMPLING_BYTES = 24
"""Of a logit while a token is drawn: fp32 logits and log-probs, two fp64 arrays; top-p's sort takes as much before."""


@dataclass(frozen=True)
class Engine:
    """An engine that shares the trainer's devices and holds the whole model on each.

    Attributes:
        rows: responses that it decodes at once.
        tokens: of prompt and response.
        prompt: tokens of the longest prompt.
        number: bytes of a weight and of a cached value.
    """

    rows: int
    tokens: int
    prompt: int
    number: int = 4


@dataclass(frozen=True)
class Beside:
    """What else lives on the trainer's ranks.

    Attributes:
        reference: whether a frozen reference does.
        reference_hidden: whether its hidden states of all trained tokens are kept, for the exact KL.
        critic: whether a critic does, of the policy's shape and with an optimizer of its own.
        engine: the engine.
    """

    reference: bool = False
    reference_hidden: bool = False
    critic: bool = False
    engine: Engine | None = None


@dataclass(frozen=True)
class Memory:
    """Bytes on a rank of one pipeline stage.

    Attributes:
        held: what is there all the time, by part.
        training: what comes with an update, by part; layers that are run again are not there at once with the head.
        rollout: what comes with generation, by part.
    """

    held: dict[str, int]
    training: dict[str, int]
    rollout: dict[str, int]

    @property
    def training_peak(self) -> int:
        """The most that comes with an update."""
        head = self.training.get("head", 0) + self.training.get("logits", 0)
        return self.training["activations"] + max(head, self.training.get("recomputed", 0))

    @property
    def peak(self) -> int:
        """What is held, with the larger of the two that come and go."""
        return sum(self.held.values()) + max(self.training_peak, sum(self.rollout.values()))


def stage_memory(
    shape: Shape, layout: Layout, numerics: Numerics, batch: Batch, beside: Beside, stage: int = 0
) -> Memory:
    """The memory of a rank of a stage. Communication buffers and the allocator's own losses are not in it."""
    state = trained_state(shape, layout, numerics, stage)
    held = {"weights": state.weights, "gradients": state.gradients, "optimizer": state.optimizer}
    is_last = stage == layout.pipeline - 1
    if beside.reference:
        held["reference"] = frozen_weights(shape, layout, numerics, stage)
        if beside.reference_hidden and is_last:
            held["reference"] += batch.count * batch.trained * shape.hidden * numerics.compute
    if beside.critic:
        held["critic"] = trained_state(shape, layout, numerics, stage, value_head=True).total
    training = {"activations": in_flight(shape, layout, numerics, batch, stage)}
    if numerics.recompute != "none":
        training["recomputed"] = recomputed_bytes(shape, layout, numerics, batch, stage)
    if is_last:
        training["head"] = head_bytes(shape, layout, numerics, batch)
        training["logits"] = logits_bytes(shape, layout, numerics, batch)
    rollout = {}
    if beside.engine is not None:
        held["engine weights"] = sum(whole_model(shape).values()) * beside.engine.number
        rollout = {
            "KV cache": cache_bytes(shape, beside.engine),
            "generation": _generation(shape, beside.engine),
        }
    return Memory(held, training, rollout)


def cache_bytes(shape: Shape, engine: Engine) -> int:
    """Keys and values of all tokens in all layers (Kwon et al., arXiv:2309.06180, section 3)."""
    per_token = 2 * shape.layers * shape.groups * shape.head_dim * engine.number
    return engine.rows * engine.tokens * per_token


def _generation(shape: Shape, engine: Engine) -> int:
    """The larger of the prompts' widest layer and the sampling of a token."""
    ffn = max(shape.ffn, shape.expert_ffn * shape.experts_per_token)
    prompts = engine.rows * engine.prompt * (3 * ffn + 2 * shape.hidden) * engine.number
    return max(prompts, engine.rows * shape.vocab * _SAMPLING_BYTES)
