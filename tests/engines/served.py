"""A policy, requests and a way to score for the tests of the served engines."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from megarl.config.schema import Recipe
from megarl.megatron.batch import pad_batch
from megarl.megatron.policy import FrozenModel, Policy
from megarl.megatron.world import Layout
from megarl.rollout.fleet import Fleet
from megarl.rollout.types import Completion, Request, SamplingParams
from megarl.rollout.vllm.replica import VllmReplica
from tests.unit.megatron.tiny import noisy_weights

VOCAB = 30
"""Of the demo's tokenizer, so that a command finds the model that it would make."""
OVERRIDES = (
    "rollout.engine=vllm",
    "sync.bucket_mib=1",
    "engine.max_concurrent=16",
    "engine.kv_cache_gib=0.25",
    "engine.health_timeout_s=20",
    "engine.restarts=20",
)
STOP = 5
SAMPLING = SamplingParams(temperature=1.0, max_new_tokens=24, stop_token_id=STOP)
FP32_TOLERANCE = 1e-4
"""Nats. Five times the largest distance that vLLM's fp32 came to from transformers' over 2,048 tokens, 2e-5."""

Notes = list[str]


def replica_of(fleet: Fleet) -> VllmReplica:
    """Its only server."""
    (replica,) = fleet._replicas
    assert isinstance(replica, VllmReplica)
    return replica


def token_of(fleet: Fleet) -> str:
    """What its server asks for."""
    return replica_of(fleet)._server.http._http.headers["Authorization"].removeprefix("Bearer ")


def policy_of(recipe: Recipe, layout: Layout, seed: int) -> Policy:
    """A policy with random weights, every tensor of which differs from those of another seed."""
    policy = Policy(recipe, layout, VOCAB)
    reload(policy, seed)
    return policy


def reload(policy: FrozenModel, seed: int) -> None:
    """Gives it other weights: the random ones of that seed, and noise on all that initialise to a constant."""
    read = noisy_weights(policy.recipe.model, seed, VOCAB)
    generator = torch.Generator().manual_seed(seed)

    def other(name: str) -> Tensor:
        tensor = read(name)
        return tensor + 0.05 * torch.randn(tensor.shape, generator=generator)

    policy.load(other)


def requests(count: int, longest: int = 40, stream: str = "rl/0", seed: int = 1) -> list[Request]:
    """Prompts of unequal lengths, three samples each; the longest are longer than a block of the prefix cache."""
    generator = torch.Generator().manual_seed(seed)
    prompts = [
        tuple(torch.randint(0, VOCAB, (length,), generator=generator).tolist())
        for length in torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    ]
    return [
        Request(f"p{number}", sample, prompt, stream) for number, prompt in enumerate(prompts) for sample in range(3)
    ]


def by_trainer(policy: FrozenModel, completions: Sequence[Completion], temperature: float = 1.0) -> list[Tensor]:
    """The trainer's own log-probs of each response's tokens, fp32, in nats."""
    batch = pad_batch(
        [completion.request.prompt_ids for completion in completions],
        [completion.token_ids for completion in completions],
        torch.device("cpu"),
    )
    before, policy.sampling = policy.sampling, replace(policy.sampling, temperature=temperature)
    try:
        log_probs_BT = policy.log_probs(batch, 1)
    finally:
        policy.sampling = before
    return [log_probs_BT[row][batch.mask_BT[row]] for row in range(len(completions))]


def farthest(policy: FrozenModel, completions: Sequence[Completion], temperature: float = 1.0) -> float:
    """Largest distance between the engine's and the trainer's log-prob of a token, in nats."""
    own = by_trainer(policy, completions, temperature)
    pairs: Iterator[tuple[Tensor, Completion]] = zip(own, completions, strict=True)
    return max(float((mine - torch.tensor(done.log_probs)).abs().max()) for mine, done in pairs)
