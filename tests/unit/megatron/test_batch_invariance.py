"""`precision.batch_invariant`: the engine's log-probs are the trainer's to the bit, in whatever company."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from megarl.config.precision import PrecisionConfig
from megarl.config.schema import Recipe
from megarl.config.training import OptimizerConfig
from megarl.megatron import log_probs
from megarl.megatron.batch import on_targets, pad_batch
from megarl.megatron.distribution import Sampling
from megarl.megatron.micro_batches import TokenBudget
from megarl.megatron.policy import FrozenModel, Policy
from megarl.megatron.world import Layout
from megarl.objectives import GRPO
from megarl.objectives.batch import ObjectiveOutput, TokenBatch
from megarl.platform.platform import current
from megarl.rollout import Request, SamplingParams
from megarl.rollout.build import build_engine
from megarl.rollout.types import Completion
from megarl.sync.push import LocalSync
from tests.unit.megatron.test_weights_hf import SCALED_ROPE
from tests.unit.megatron.tiny import VOCAB, noisy_weights, random_batch, tiny_recipe

MODELS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", **SCALED_ROPE},
    "qwen2 untied": {"family": "qwen2", "tie_embeddings": False},
    "qwen3": {"family": "qwen3", "head_dim": 16},
}
PRECISIONS = {
    "fp32": PrecisionConfig(),
    "bf16": PrecisionConfig(dtype="bf16"),
    "bf16, fp32 head": PrecisionConfig(dtype="bf16", fp32_head=True),
    "bf16, fp32 residual": PrecisionConfig(dtype="bf16", fp32_residual=True),
    "fp16": PrecisionConfig(dtype="fp16"),
}
TEMPERATURE = 0.8


@dataclass(frozen=True)
class Watched(GRPO):
    """GRPO that notes how far the policy is from where the batch was scored."""

    seen: list[float] = field(default_factory=list)

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        log_ratio_BT = batch.log_probs_BT - batch.given("old_log_probs_BT")
        self.seen.append(float(log_ratio_BT.detach()[batch.mask_BT].abs().max()))
        return super().__call__(batch)


SAMPLING = SamplingParams(temperature=TEMPERATURE, max_new_tokens=12, stop_token_id=1)
ROWS = 14


def recipe_of(keys: dict[str, Any], precision: PrecisionConfig, *, invariant: bool = True, at_once: int = 4) -> Recipe:
    recipe = tiny_recipe(temperature=TEMPERATURE, precision=replace(precision, batch_invariant=invariant), **keys)
    return replace(recipe, rollout=replace(recipe.rollout, max_batch_size=at_once))


def ragged_requests() -> list[Request]:
    """Prompts of 1 to 9 tokens."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 10, (ROWS,), generator=generator).tolist()
    return [
        Request(f"p{row}", 0, tuple(torch.randint(0, VOCAB, (length,), generator=generator).tolist()), "rl/0")
        for row, length in enumerate(lengths)
    ]


def scored(
    policy: FrozenModel, completions: list[Completion], micro_batch_size: int | TokenBudget
) -> list[list[float]]:
    batch = pad_batch([c.request.prompt_ids for c in completions], [c.token_ids for c in completions], current().device)
    log_probs_BT = policy.log_probs(batch, micro_batch_size)
    return [row[mask].tolist() for row, mask in zip(log_probs_BT, batch.mask_BT, strict=True)]


def reported(completions: list[Completion]) -> list[list[float]]:
    return [[value for value in c.log_probs if value is not None] for c in completions]


def all_ways(recipe: Recipe, layout: Layout) -> list[list[list[float]]]:
    """Log-probs of the same responses: by the engine in batches of 4, of 1 and in another order; by the trainer."""
    policy = FrozenModel(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    requests = ragged_requests()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(4)).tolist()
    found, first = [], None
    for at_once, places in ((4, range(ROWS)), (1, range(ROWS)), (ROWS, order)):
        engine = build_engine(replace(recipe, rollout=replace(recipe.rollout, max_batch_size=at_once)), VOCAB)
        LocalSync(policy, engine).push(0)
        answers = engine.generate([requests[place] for place in places], SAMPLING)
        sorted_back = [answers[list(places).index(row)] for row in range(ROWS)]
        first = first or sorted_back
        assert [c.token_ids for c in sorted_back] == [c.token_ids for c in first], "other tokens were drawn"
        found.append(reported(sorted_back))
    assert first is not None
    for micro_batch_size in (1, 2, 7, ROWS, TokenBudget(21), TokenBudget(96)):
        found.append(scored(policy, first, micro_batch_size))
    shuffled = scored(policy, [first[place] for place in order], 7)
    found.append([shuffled[order.index(row)] for row in range(ROWS)])
    return found


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=list(PRECISIONS))
@pytest.mark.parametrize("keys", MODELS.values(), ids=list(MODELS))
def test_bits_are_the_same_in_every_company(layout: Layout, keys: dict[str, Any], precision: PrecisionConfig) -> None:
    first, *others = all_ways(recipe_of(keys, precision), layout)
    assert sum(map(len, first)) > 5 * ROWS and all(value < 0 for row in first for value in row)
    for other in others:
        assert other == first


def test_the_output_layers_chunks_change_no_bit(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(MODELS["llama"], PRECISIONS["bf16, fp32 head"])
    policy = FrozenModel(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    batch = random_batch(ROWS)
    together_BT = policy.log_probs(batch, ROWS)
    for tokens in (1, 3, 16):
        monkeypatch.setattr(log_probs, "CHUNK_BYTES", 4 * VOCAB * tokens)
        assert torch.equal(policy.log_probs(batch, ROWS)[batch.mask_BT], together_BT[batch.mask_BT])


@pytest.mark.parametrize("precision", [PRECISIONS["fp32"], PRECISIONS["bf16"]], ids=["fp32", "bf16"])
def test_without_the_key_bits_differ(layout: Layout, precision: PrecisionConfig) -> None:
    """Else the test above would hold of any arithmetic."""
    first, *others = all_ways(recipe_of(MODELS["qwen2 untied"], precision, invariant=False), layout)
    assert any(other != first for other in others[2:])


@dataclass(frozen=True)
class Stepped:
    """Log-probs of the responses' tokens, and the gradient of a step on them, end to end and without a clip."""

    log_probs_N: Tensor
    gradient_P: Tensor


def stepped(layout: Layout, precision: PrecisionConfig, completions: list[Completion], *, invariant: bool) -> Stepped:
    recipe = recipe_of(MODELS["qwen3"], precision, invariant=invariant)
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    policy.start_phase(OptimizerConfig(lr=1e-2, warmup_steps=0, clip_grad=0.0), 2)
    batch = pad_batch([c.request.prompt_ids for c in completions], [c.token_ids for c in completions], current().device)
    log_probs_BT = policy.log_probs(batch, 7)
    advantages = torch.linspace(-1, 1, ROWS)[:, None]
    given = batch.with_rollout(advantages, old_log_probs_BT=log_probs_BT, rollout_log_probs_BT=log_probs_BT)
    policy.update(given, GRPO(), micro_batch_size=7, sampling=Sampling(TEMPERATURE))
    gradients = [weight.main_grad.double().flatten() for weight in policy.weights()]
    return Stepped(log_probs_BT[batch.mask_BT].double(), torch.cat(gradients))


def answers(layout: Layout) -> list[Completion]:
    recipe = recipe_of(MODELS["qwen3"], PRECISIONS["fp32"], invariant=False)
    policy, engine = FrozenModel(recipe, layout, VOCAB), build_engine(recipe, VOCAB)
    policy.load(noisy_weights(recipe.model))
    LocalSync(policy, engine).push(0)
    return engine.generate(ragged_requests(), SAMPLING)


def test_in_fp32_it_is_the_same_model(layout: Layout) -> None:
    """But for the roundings of either: some hundred of 2^-24 in a log-prob of some units, and in the gradient."""
    completions = answers(layout)
    ours, theirs = (
        stepped(layout, PRECISIONS["fp32"], completions, invariant=invariant) for invariant in (True, False)
    )
    torch.testing.assert_close(ours.log_probs_N, theirs.log_probs_N, rtol=0.0, atol=2e-5)
    assert (ours.gradient_P - theirs.gradient_P).norm() < 1e-5 * theirs.gradient_P.norm()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_in_16_bits_it_is_as_near_to_fp32_as_ordinary_arithmetic(layout: Layout, precision: str) -> None:
    """By the root mean square: of N independent errors it is off by 1 / sqrt(2 N), a quotient of two by 1 / sqrt(N).

    The errors of a response's tokens are not independent, so N is the responses; and 4 standard deviations.
    """
    completions = answers(layout)
    exact = stepped(layout, PRECISIONS["fp32"], completions, invariant=False)
    ours, theirs = (
        stepped(layout, PRECISIONS[precision], completions, invariant=invariant) for invariant in (True, False)
    )
    bound = 1 + 4 / ROWS**0.5
    assert (ours.log_probs_N - exact.log_probs_N).norm() < bound * (theirs.log_probs_N - exact.log_probs_N).norm()
    assert (ours.gradient_P - exact.gradient_P).norm() < bound * (theirs.gradient_P - exact.gradient_P).norm()


def test_a_first_update_has_a_ratio_of_one(layout: Layout) -> None:
    """The training forward pass gives the scoring pass's bits, so that the policy loss starts at ratio 1 exactly."""
    recipe = recipe_of(MODELS["qwen2 untied"], PRECISIONS["bf16"])
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    policy.start_phase(OptimizerConfig(lr=1e-2, warmup_steps=0), 2)
    engine = build_engine(recipe, VOCAB)
    LocalSync(policy, engine).push(0)
    completions = engine.generate(ragged_requests(), SAMPLING)
    batch = pad_batch([c.request.prompt_ids for c in completions], [c.token_ids for c in completions], current().device)
    theirs_BT = on_targets(batch, [c.log_probs for c in completions])
    given = batch.with_rollout(torch.ones(ROWS, 1), old_log_probs_BT=theirs_BT, rollout_log_probs_BT=theirs_BT)
    seen: list[float] = []
    policy.update(given, Watched(seen=seen), micro_batch_size=7, sampling=Sampling(TEMPERATURE))
    assert len(seen) == 2 and max(seen) == 0.0
