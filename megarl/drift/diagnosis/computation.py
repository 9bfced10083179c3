"""How log-probs are computed: the switches that experiments turn."""

from dataclasses import dataclass
from typing import Literal

Padding = Literal["none", "attended", "gap"]
Dtype = Literal["fp64", "fp32", "bf16", "fp16"]
Operands = Literal["fp8_tensor", "fp8_step", "fp8_row", "fp8_block", "int8_row"]


@dataclass(frozen=True)
class Computation:
    """One way to score rollouts; the default is the trainer's own.

    Attributes:
        dtype: of weights and activations; None for the trainer's.
        head: dtype of the output layer and of its logits; None for the trainer's own.
        residual: dtype of the residual stream; None for the trainer's own.
        operands: what those of the layers' linear products are rounded to, and what has a scale; None where they are
            not. 'fp8_step': a tensor has, and holds what an engine reads at once: all prompts, then a token of each.
        tied: whether the output layer is the embedding; None for the model's own way.
        rope_theta: base of the rotary embedding; None for the model's.
        rope_factor: by how much positions are divided (linear scaling).
        padding: 'attended': every prompt is padded on its left, and the padding is read as tokens; 'gap': padding
            between prompt and response is hidden but counted in the positions.
        packed: sequences that are read end to end as one, each seeing those before it; 1 for none.
        restarts: whether positions begin anew with each packed sequence.
        causal: whether a token sees those before it alone.
        window: tokens that a token sees at most, itself included; None for all.
        age: of the weights: 0 for the newest, 1 for those before, and so on.
        prompt_age: of the weights that the prompt's cached keys and values are by.
        block: tokens of a cached block: whole ones are reused, and never the prompt's last token.
        tensors: names of those that are of another age.
        tensors_age: that age.
        drop: tokens of the prompt that are left out at its begin.
        prepend: tokens that are put before it.
        replay: whether tokens go to the experts that the engine reported.
        experts_per_token: how many; None for the model's.
        renormalise: whether the chosen experts' weights are made to sum to 1; None for the model's.
        router: dtype of the router; None for that of the rest.
        rows_at_once: sequences that are run together; None for all.
    """

    dtype: Dtype | None = None
    head: Dtype | None = None
    residual: Dtype | None = None
    operands: Operands | None = None
    tied: bool | None = None
    rope_theta: float | None = None
    rope_factor: float = 1.0
    padding: Padding = "none"
    packed: int = 1
    restarts: bool = True
    causal: bool = True
    window: int | None = None
    age: int = 0
    prompt_age: int = 0
    block: int = 1
    tensors: tuple[str, ...] = ()
    tensors_age: int = 0
    drop: int = 0
    prepend: tuple[int, ...] = ()
    replay: bool = False
    experts_per_token: int | None = None
    renormalise: bool | None = None
    router: Dtype | None = None
    rows_at_once: int | None = None

    @property
    def only_rounds(self) -> bool:
        """Whether it differs from the trainer's own in nothing but precision."""
        plain = Computation(self.dtype, self.head, self.residual, self.operands, router=self.router)
        return self == plain != Computation()
