"""What the embedded engine samples under top-p and top-k is what the trainer scores; without the support it is not."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megarl.config.schema import Recipe
from megarl.config.training import OptimizerConfig
from megarl.drift import drift_metrics
from megarl.megatron.batch import TrainBatch, on_targets, pad_batch
from megarl.megatron.distribution import Sampling
from megarl.megatron.policy import Policy
from megarl.megatron.world import Layout, join_world, leave_world
from megarl.objectives import GRPO, GSPO, EntropyBonus, KLPenalty, Objective
from megarl.rollout import Completion, Request, SamplingParams
from megarl.rollout.build import build_engine
from megarl.sync.push import LocalSync
from tests.unit.megatron.hf import hf_model
from tests.unit.megatron.tiny import VOCAB, noisy_weights, tiny_recipe

TEMPERATURE, STOP = 1.5, 6
TRUNCATIONS = [(0.8, 0), (1.0, 4), (0.9, 6)]
REQUESTS = [Request(f"p{row // 4}", row % 4, tuple(range(1, 3 + row // 4 % 5)), "rl/0") for row in range(80)]


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    """A trainer of one process."""
    yield join_world(tiny_recipe().parallel, seed=1)
    leave_world()


def rolled_out(policy: Policy, recipe: Recipe) -> tuple[list[Completion], TrainBatch]:
    """The engine's responses with the policy's weights, and the batch of them with its log-probs."""
    engine = build_engine(recipe, VOCAB)
    LocalSync(policy, engine).push(0)
    rollout = recipe.rollout
    sampling = SamplingParams(rollout.temperature, 10, STOP, top_p=rollout.top_p, top_k=rollout.top_k)
    completions = engine.generate(REQUESTS, sampling)
    prompts, responses = [r.prompt_ids for r in REQUESTS], [c.token_ids for c in completions]
    batch = pad_batch(prompts, responses, torch.device("cpu"))
    log_probs: Sequence[Sequence[float | None]] = [c.log_probs for c in completions]
    return completions, replace(batch, rollout_log_probs_BT=on_targets(batch, log_probs))


def policy_of(recipe: Recipe, layout: Layout) -> Policy:
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    return policy


def kept_mass(network: torch.nn.Module, completion: Completion, top_p: float, top_k: int) -> Tensor:
    """Of each position's full distribution, what top-k and then top-p leave, from one pass in fp64."""
    prompt, response = completion.request.prompt_ids, completion.token_ids
    with torch.no_grad():
        logits = network(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    p = (logits / TEMPERATURE).softmax(-1).sort(-1, descending=True).values
    if top_k:
        p[:, top_k:] = 0
    share = p / p.sum(-1, keepdim=True)
    before = share.cumsum(-1) - share
    return (p * (before < top_p)).sum(-1)


@pytest.mark.parametrize(("top_p", "top_k"), TRUNCATIONS)
def test_engine_and_trainer_agree_under_the_support(layout: Layout, top_p: float, top_k: int) -> None:
    recipe = tiny_recipe(temperature=TEMPERATURE, top_p=top_p, top_k=top_k)
    policy = policy_of(recipe, layout)
    completions, batch = rolled_out(policy, recipe)
    theirs_BT, mask_BT = batch.rollout_log_probs_BT, batch.mask_BT
    assert theirs_BT is not None
    ours_BT, agreement = policy.log_probs_and_agreement(batch, 16)
    with_support = drift_metrics(ours_BT, theirs_BT, mask_BT)
    assert with_support["abs_max"] < 1e-4 and with_support["outside_band_share"] == 0
    assert (ours_BT - theirs_BT)[mask_BT].exp().mean().item() == pytest.approx(1.0, abs=1e-5)
    assert agreement == {"outside_support_share": 0.0}

    # over the whole vocabulary the ratio is the kept mass, token by token
    recipe = tiny_recipe(temperature=TEMPERATURE)
    ours_BT, agreement = policy_of(recipe, layout).log_probs_and_agreement(batch, 16)
    assert agreement == {}
    without = drift_metrics(ours_BT, theirs_BT, mask_BT)
    assert without["abs_max"] > 0.1 and without["outside_band_share"] > 0.3
    network = hf_model(recipe.model, noisy_weights(recipe.model), torch.float64)
    kept_M = torch.cat([kept_mass(network, completion, top_p, top_k) for completion in completions])
    assert kept_M.mean() < 0.95
    torch.testing.assert_close((ours_BT - theirs_BT)[mask_BT].exp().double(), kept_M, rtol=1e-4, atol=0.0)


def test_tokens_that_the_trainer_would_not_draw_are_counted(layout: Layout) -> None:
    """Sampled from all of the vocabulary, scored under half of it: their log-probs are finite."""
    _, batch = rolled_out(policy_of(tiny_recipe(temperature=TEMPERATURE), layout), tiny_recipe(temperature=TEMPERATURE))
    recipe = tiny_recipe(temperature=TEMPERATURE, top_p=0.5)
    log_probs_BT, agreement = policy_of(recipe, layout).log_probs_and_agreement(batch, 16)
    assert log_probs_BT[batch.mask_BT].isfinite().all()
    # the likeliest that reach .5 have at least that, and of 13 tokens the last one is large
    assert 0.1 < agreement["outside_support_share"] < 0.5


@pytest.mark.parametrize("objective", [GRPO(), GSPO()], ids=["token-local", "whole responses"])
def test_an_update_scores_under_the_support(layout: Layout, objective: Objective) -> None:
    """Before the first step the policy under training is the one that was scored, whichever way the gradient forms."""
    policy = policy_of(tiny_recipe(temperature=TEMPERATURE, top_p=0.8), layout)
    policy.start_phase(OptimizerConfig(lr=1e-3), 2)
    _, batch = rolled_out(policy, policy.recipe)
    old_BT = policy.log_probs(batch, 16)
    advantages_BT = torch.tensor([1.0, -1.0, 0.5, -0.5] * 20)[:, None].expand(batch.mask_BT.shape)
    given = replace(batch.with_rollout(advantages_BT, old_log_probs_BT=old_BT), reference_log_probs_BT=old_BT)
    loss = EntropyBonus(KLPenalty(objective, 0.1), 0.01)
    metrics = policy.update(given, loss, micro_batch_size=16, sampling=policy.sampling).metrics
    assert metrics["kl/reference_k1"] == pytest.approx(0.0, abs=1e-5)
    other = policy_of(policy.recipe, layout)
    other.start_phase(OptimizerConfig(lr=1e-3), 2)
    whole = other.update(given, loss, micro_batch_size=16, sampling=Sampling(TEMPERATURE)).metrics
    assert whole["kl/reference_k1"] < -0.05
    assert metrics["policy/entropy"] < whole["policy/entropy"] - 0.1
