"""Whether an engine computes with the weights that it was given: its log-probs against the trainer's.

Digests prove what a worker received. Kernels repack weights and leave nothing to hash, caches outlive weights, and the
names under which the trainer sends may be wrong: of all that, only what the engine computes tells.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megarl.config.schema import Recipe
from megarl.megatron.batch import on_targets, pad_batch
from megarl.megatron.policy import FrozenModel
from megarl.platform.platform import current
from megarl.rollout.engine import WeightsError
from megarl.rollout.types import Completion, Request, SamplingParams

_PROMPTS = 4
"""Of each kind, and more where the trainer's layout needs more sequences."""
_PROMPT_TOKENS = 96
"""Longer than the blocks that engines cache, of 16 to 64 tokens."""
_RESPONSE_TOKENS = 8
_SPACING = {"fp32": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7, "int8": 2.0**-5, "fp8": 2.0**-3}
"""Distance from 1 to the next number; of int8, whose scale is a row's largest number, from a usual one."""
_PRODUCTS = 10
"""Results that a layer rounds and a token's log-prob hangs on: norms, projections, attention, gate, sums."""
_MARGIN = 2.0


@dataclass(frozen=True)
class Agreement:
    """Both sides on the tokens that the engines sampled.

    Attributes:
        tokens: number of them.
        mean, largest: of |trainer - engine|, in nats.
        bound: what rounding explains of the mean, in nats.
    """

    tokens: int
    mean: float
    largest: float
    bound: float

    def __str__(self) -> str:
        """One line."""
        return (
            f"Log-probs of {self.tokens} sampled tokens, |trainer - engine|: mean {self.mean:.2g}, "
            f"largest {self.largest:.2g} nats (rounding explains a mean of {self.bound:.2g})."
        )


class Probe:
    """Asks every replica to go on with the same prompts each time, which a prefix cache knows, and with fresh ones."""

    def __init__(self, recipe: Recipe, policy: FrozenModel) -> None:
        """Args: recipe: says how the engine samples and both sides compute. policy: has the weights."""
        self._recipe, self._policy = recipe, policy
        layout = policy.layout
        step = layout.data_size * layout.pipeline_size
        self._rows = step * math.ceil(_PROMPTS / step)
        self._asked = 0

    @property
    def sampling(self) -> SamplingParams:
        """How the engine is to answer; every token that ends a response serves."""
        rollout = self._recipe.rollout
        return SamplingParams(
            rollout.temperature, _RESPONSE_TOKENS, stop_token_id=0, top_p=rollout.top_p, top_k=rollout.top_k
        )

    def requests(self) -> list[Request]:
        """The prompts that were asked before, then the fresh ones; the same on every rank."""
        self._asked += 1
        return [*self._prompts("fixed"), *self._prompts(f"fresh/{self._asked}")]

    def check(self, answers: Sequence[Sequence[Completion]], version: int) -> Agreement:
        """Compares every replica's log-probs with the policy's. Collective.

        Args:
            answers: of each replica, one completion a request, the same on every rank.
            version: of the weights.

        Raises:
            WeightsError: an engine answers under another version, or its log-probs are not the policy's.
        """
        flat = [completion for of_replica in answers for completion in of_replica]
        for completion in flat:
            spans = [span.version for span in completion.versions]
            if spans != [version]:
                raise WeightsError(f"the engine answers with weights of version {spans} after a sync of {version}")
        batch = pad_batch(
            [completion.request.prompt_ids for completion in flat],
            [completion.token_ids for completion in flat],
            current().device,
        )
        own_BT = self._policy.log_probs(batch, 1)
        engine_BT = on_targets(batch, [completion.log_probs for completion in flat])
        # at the edge of what top-p or top-k leaves, the two sides may leave different tokens
        shared_BT = batch.mask_BT & (own_BT != -math.inf)
        apart_BT = torch.where(shared_BT, (own_BT - engine_BT).abs(), 0.0)
        tokens_B = shared_BT.sum(dim=1)
        bound = tolerance(self._recipe)
        for replica in range(len(answers)):
            begin = replica * 2 * self._rows
            known, fresh = (
                _mean(apart_BT[rows], tokens_B[rows])
                for rows in (slice(begin, begin + self._rows), slice(begin + self._rows, begin + 2 * self._rows))
            )
            # written so that NaN fails
            if not (known <= bound and fresh <= bound):
                raise WeightsError(_sentence(known, fresh, bound))
        return Agreement(int(tokens_B.sum()), _mean(apart_BT, tokens_B), float(apart_BT.max()), bound)

    def _prompts(self, name: str) -> list[Request]:
        recipe = self._recipe
        length = min(_PROMPT_TOKENS, recipe.model.max_position_embeddings - _RESPONSE_TOKENS)
        key = hashlib.blake2b(f"{recipe.seed}/sync-probe/{name}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key, "little"))
        ids = torch.randint(self._policy.vocab_size, (self._rows, length), generator=generator).tolist()
        return [Request(str(row), 0, tuple(prompt), f"sync-probe/{name}") for row, prompt in enumerate(ids)]


def tolerance(recipe: Recipe) -> float:
    """Largest mean distance, in nats a token, between log-probs of the same weights on both sides.

    Each of a token's `10 * layers` results is rounded once, at random, so relative errors add as their squares do; fp32
    results err by as much again for each of the `hidden_size` products that are summed, where lower precisions sum in
    fp32. That counts twice, for what is not random. A temperature divides logits and their errors alike. Near a tie a
    token changes its expert, which is no small error: experts double the bound.

    vLLM's fp32 and bf16 on a CPU came to 3.8e-6 and .030 on a model of 8 layers of 512, for which this gives 4.8e-5 and
    .14.
    """
    model, engine = recipe.model, recipe.engine
    own = recipe.precision.dtype
    sides = (
        "fp8" if recipe.precision.fp8.enabled else own,
        {"none": own if engine.dtype == "auto" else engine.dtype, "int8": "int8"}.get(engine.quantization, "fp8"),
    )
    coarsest = max(sides, key=_SPACING.__getitem__)
    roundings = _PRODUCTS * model.num_layers * (model.hidden_size if coarsest == "fp32" else 1)
    factor = _MARGIN * (2.0 if model.moe.num_experts else 1.0)
    return factor * _SPACING[coarsest] * math.sqrt(roundings) / min(recipe.rollout.temperature, 1.0)


def _mean(apart_BT: Tensor, tokens_B: Tensor) -> float:
    return float(apart_BT.sum() / tokens_B.sum())


def _sentence(known: float, fresh: float, bound: float) -> str:
    if fresh <= bound:
        return (
            f"behind prompts that it read under earlier weights the engine's log-probs are {known:.2g} nats a token "
            f"from the trainer's, behind fresh ones {fresh:.2g}, where rounding explains {bound:.2g}: it answers from "
            "a stale prefix cache"
        )
    return (
        f"every tensor arrived, yet the engine's log-probs are {fresh:.2g} nats a token from the trainer's, where "
        f"rounding explains {bound:.2g}: it computes with other weights than it was given (a tied head or a repacked "
        "layer that kept the old ones, or tensors that are sent under each other's names), or it is another model"
    )
