"""The trainer's log-probs against the engine's, on tokens that the engine samples: whether both hold the same model."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from megarl.config.schema import Recipe
from megarl.megatron.batch import pad_batch
from megarl.megatron.policy import FrozenModel
from megarl.platform.platform import current
from megarl.rollout.distribute import generate_at_servers, generate_on_all_ranks
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.engine import EngineLost
from megarl.rollout.fleet import Fleet
from megarl.rollout.types import Completion, Request, SamplingParams
from megarl.rollout.vllm.command import DTYPES

_PROMPTS, _PROMPT_TOKENS, _NEW_TOKENS = 8, 8, 32
_LIMITS = {"fp32": 1e-4, "fp16": 0.02, "bf16": 0.15, "fp8": 1.0}
"""Largest mean |trainer - engine| in nats.

Engines' kernels round otherwise than the trainer's. Against the same weights vLLM's mean was 4e-6 in fp32, where the
order of sums is what differs, 0.03 in bf16, and 0.2 to 0.3 in 8 bits; fp16 keeps 3 bits more than bf16. Each limit is
at least three times that, and a model of other weights is nats away.
"""


@dataclass(frozen=True)
class LogProbs:
    """Both sides on the sampled tokens.

    Attributes:
        tokens: number of them.
        abs_mean, abs_max: of trainer minus engine, in nats.
        limit: for the mean, of the coarser of the two precisions.
    """

    tokens: int
    abs_mean: float
    abs_max: float
    limit: float

    @property
    def wrong(self) -> str | None:
        """None where the two agree."""
        if self.abs_mean <= self.limit:
            return None
        return (
            f"every tensor arrived, yet the engine's log-probs are {self.abs_mean:.3g} nats from the trainer's in the "
            f"mean, above {self.limit:g}; the engine computes another model: look at its RoPE, norms, head and dtype"
        )

    def __str__(self) -> str:
        """One line."""
        return (
            f"Log-probs of {self.tokens} sampled tokens, trainer minus engine: mean {self.abs_mean:.2g}, "
            f"largest {self.abs_max:.2g} nats (limit of the mean {self.limit:g})."
        )


def probe(recipe: Recipe, policy: FrozenModel, engine: EmbeddedEngine | Fleet | None) -> LogProbs:
    """Has the engine continue random prompts, and scores what it sampled with the trainer. Collective.

    Raises:
        EngineLost: a server died.
    """
    requests = _requests(recipe, policy.vocab_size, _PROMPTS * policy.layout.data_size)
    room = recipe.model.max_position_embeddings - _PROMPT_TOKENS
    longest = min(_NEW_TOKENS, recipe.rollout.max_new_tokens, room)
    sampling = SamplingParams(recipe.rollout.temperature, longest, stop_token_id=policy.vocab_size - 1)
    completions = _generated(engine, requests, sampling, policy)
    batch = pad_batch(
        [request.prompt_ids for request in requests],
        [completion.token_ids for completion in completions],
        current().device,
    )
    trainer_BT = policy.log_probs(batch, 1)
    engine_N = torch.tensor([value for completion in completions for value in completion.log_probs or ()])
    delta_N = (trainer_BT[batch.mask_BT].cpu().double() - engine_N.double()).abs()
    return LogProbs(len(delta_N), float(delta_N.mean()), float(delta_N.max()), _limit(recipe))


def _generated(
    engine: EmbeddedEngine | Fleet | None, requests: Sequence[Request], sampling: SamplingParams, policy: FrozenModel
) -> list[Completion]:
    rank, world_size = policy.layout.rank, policy.layout.world_size
    if isinstance(engine, EmbeddedEngine):
        return generate_on_all_ranks(engine, requests, sampling, rank, world_size)
    return generate_at_servers(engine, requests, sampling, world_size, partial(_lost, rank))


def _lost(rank: int) -> None:
    raise EngineLost(f"rank {rank}: a server died while it generated; its log says why")


def _requests(recipe: Recipe, vocab_size: int, number: int) -> list[Request]:
    name = f"{recipe.seed}/sync-check/prompts".encode()
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name).digest()[:8], "little", signed=True))
    prompts = torch.randint(vocab_size, (number, _PROMPT_TOKENS), generator=generator).tolist()
    return [Request(f"probe {index}", 0, tuple(prompt), "sync-check") for index, prompt in enumerate(prompts)]


def _limit(recipe: Recipe) -> float:
    trainer = "fp8" if recipe.precision.fp8.enabled else recipe.precision.dtype
    served = recipe.engine.dtype if recipe.engine.dtype in DTYPES else recipe.precision.dtype
    # the embedded engine computes in fp32
    engine = "fp32" if recipe.rollout.engine == "embedded" else served
    return max(_LIMITS[trainer], _LIMITS[engine])
