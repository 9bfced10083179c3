"""One optimizer step: against transformers with torch's AdamW in float64, and under every split of the batch."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from megarl.config.training import OptimizerConfig
from megarl.megatron.batch import TrainBatch
from megarl.megatron.distribution import Sampling
from megarl.megatron.forward import policy_forward_step
from megarl.megatron.policy import Policy, Update
from megarl.megatron.world import Layout
from megarl.objectives import GRPO, SFT, EntropyBonus, KLPenalty, Normalisation, Objective, TokenBatch
from megarl.objectives.normalisation import MODES
from tests.unit.megatron.hf import hf_log_probs, hf_model
from tests.unit.megatron.tiny import VOCAB, noisy_weights, random_batch, rl_batch, tiny_recipe

ROWS = 4
TEMPERATURE = 0.8
CONSTANT = 7
# an epsilon beside the gradients: where they are smaller, Adam's step would hang on their last digits
CONFIG = OptimizerConfig(lr=1e-2, weight_decay=0.1, clip_grad=0.5, eps=1e-3, beta2=0.9)

Weights = dict[str, Tensor]


def policy_with(layout: Layout, config: OptimizerConfig, steps: int = 4, **model: Any) -> Policy:
    """A policy with noisy weights, ready to train."""
    recipe = tiny_recipe(temperature=TEMPERATURE, **model)
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    policy.start_phase(config, steps)
    return policy


def grpo_batch(policy: Policy) -> TrainBatch:
    """A batch whose second response is fully masked out."""
    batch = rl_batch(ROWS, policy.log_probs(random_batch(ROWS), 1))
    mask = batch.mask_BT.clone()
    mask[1] = False
    return replace(batch, mask_BT=mask)


def update(policy: Policy, batch: TrainBatch, objective: Objective, micro_batch_size: int, mode: str) -> Update:
    return policy.update(
        batch,
        objective,
        micro_batch_size=micro_batch_size,
        sampling=Sampling(TEMPERATURE),
        normalisation=Normalisation(mode, CONSTANT if mode == "seq_mean_token_sum_norm" else None),
    )


def weights_of(policy: Policy) -> Weights:
    return {name: tensor.clone() for name, tensor in policy.export()}


def by_transformers(policy: Policy, batch: TrainBatch, objective: Objective, mode: str) -> tuple[float, float, Weights]:
    """Loss, gradient norm and the weights after one clipped AdamW step, in float64, without Megatron-core."""
    config = policy.recipe.model
    network = hf_model(config, weights_of(policy).__getitem__, torch.float64)
    log_probs = hf_log_probs(network, batch, TEMPERATURE)
    tensors = (batch.advantages_BT, batch.old_log_probs_BT, batch.reference_log_probs_BT)
    advantages, old, reference = (None if tensor is None else tensor.double() for tensor in tensors)
    token_batch = TokenBatch(log_probs, batch.mask_BT, log_probs, advantages, old, None, reference)
    terms = objective(token_batch).loss_BT
    trained, sums = batch.mask_BT.any(1), terms.sum(1)
    loss = {
        "token_mean": terms.sum() / batch.mask_BT.sum(),
        "seq_mean_token_mean": (sums / batch.mask_BT.sum(1).clamp(min=1))[trained].mean(),
        "seq_mean_token_sum": sums[trained].mean(),
        "seq_mean_token_sum_norm": sums[trained].mean() / CONSTANT,
    }[mode]
    loss.backward()
    parameters = dict(network.named_parameters())
    norm = torch.nn.utils.clip_grad_norm_(parameters.values(), CONFIG.clip_grad)
    decayed = [parameter for parameter in parameters.values() if parameter.ndim > 1]
    others = [parameter for parameter in parameters.values() if parameter.ndim == 1]
    torch.optim.AdamW(
        [{"params": decayed, "weight_decay": CONFIG.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=CONFIG.lr,
        betas=(CONFIG.beta1, CONFIG.beta2),
        eps=CONFIG.eps,
    ).step()
    return loss.item(), norm.item(), {name: parameter.detach() for name, parameter in parameters.items()}


OBJECTIVES: list[tuple[Objective, Callable[[Policy], TrainBatch]]] = [
    (KLPenalty(GRPO(0.2, 0.28), 0.04), grpo_batch),
    (SFT(), lambda policy: random_batch(ROWS)),
]


@pytest.mark.parametrize(("objective", "make_batch"), OBJECTIVES, ids=["grpo", "sft"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tied", [True, False])
def test_update_is_that_of_transformers_and_adamw(
    layout: Layout, objective: Objective, make_batch: Callable[[Policy], TrainBatch], mode: str, tied: bool
) -> None:
    # one step of one: the rate is the last one's, so the peak is scaled for it to be CONFIG.lr
    config = replace(CONFIG, min_lr_ratio=1.0)
    for micro_batch_size in (1, 2, 4):
        policy = policy_with(layout, config, steps=1, tie_embeddings=tied)
        batch = make_batch(policy)
        loss, norm, weights = by_transformers(policy, batch, objective, mode)
        result = update(policy, batch, objective, micro_batch_size, mode)
        assert norm > CONFIG.clip_grad
        assert result.lr == CONFIG.lr
        assert result.loss == pytest.approx(loss, rel=1e-5)
        assert result.grad_norm == pytest.approx(norm, rel=1e-5)
        for name, tensor in policy.export():
            torch.testing.assert_close(tensor.double(), weights[name], rtol=1e-5, atol=1e-6, msg=name)


def test_metrics_are_means_over_the_trained_tokens(layout: Layout) -> None:
    results = []
    for micro_batch_size in (1, 4):
        policy = policy_with(layout, CONFIG)
        batch = grpo_batch(policy)
        results.append(
            update(policy, batch, EntropyBonus(KLPenalty(GRPO(), 0.001)), micro_batch_size, "token_mean").metrics
        )
    log_probs = policy_with(layout, CONFIG).log_probs(batch, 2)
    assert batch.old_log_probs_BT is not None and batch.reference_log_probs_BT is not None
    wanted = {
        "policy/ratio_mean": (log_probs - batch.old_log_probs_BT).exp(),
        "kl/reference_k1": log_probs - batch.reference_log_probs_BT,
    }
    for metrics in results:
        assert metrics == pytest.approx(results[0], rel=1e-5)
        for name, values in wanted.items():
            assert metrics[name] == pytest.approx(values[batch.mask_BT].mean().item(), rel=1e-5, abs=1e-6)
        assert 0 < metrics["policy/entropy"] < math.log(VOCAB)


def rates(layout: Layout, config: OptimizerConfig, steps: int) -> list[float]:
    policy = policy_with(layout, config, steps)
    return [update(policy, random_batch(2), SFT(), 2, "token_mean").lr for _ in range(steps)]


def test_schedule_warms_up_and_ends_at_the_least_rate(layout: Layout) -> None:
    config = OptimizerConfig(lr=0.01, min_lr_ratio=0.1, warmup_steps=2)
    assert rates(layout, config, 5) == pytest.approx([0.005, 0.01, 0.007, 0.004, 0.001])


def test_first_update_is_not_spent_at_a_rate_of_zero(layout: Layout) -> None:
    for warmup_steps in (0, 3):
        policy = policy_with(layout, OptimizerConfig(lr=0.01, warmup_steps=warmup_steps), steps=6)
        before = weights_of(policy)
        assert update(policy, random_batch(2), SFT(), 2, "token_mean").lr > 0
        assert any(not torch.equal(tensor, before[name]) for name, tensor in policy.export())


def test_norms_and_biases_have_no_weight_decay(layout: Layout) -> None:
    lr, decay = 0.1, 0.5
    policy = policy_with(layout, OptimizerConfig(lr=lr, min_lr_ratio=1.0, weight_decay=decay), steps=1)
    before = weights_of(policy)
    # advantages of zero and no KL: the gradient is zero, and what moves is the decay alone
    batch = grpo_batch(policy)
    still = replace(batch, advantages_BT=torch.zeros_like(batch.mask_BT, dtype=torch.float32))
    assert update(policy, still, GRPO(), 2, "token_mean").grad_norm == 0
    for name, tensor in policy.export():
        factor = 1.0 if tensor.ndim == 1 else 1 - lr * decay
        torch.testing.assert_close(tensor, before[name] * factor, rtol=1e-6, atol=1e-7, msg=name)


def test_clip_grad_of_zero_measures_and_does_not_clip(layout: Layout) -> None:
    after = {}
    for clip_grad in (0.0, 1e9, 0.5):
        policy = policy_with(layout, replace(CONFIG, clip_grad=clip_grad))
        result = update(policy, random_batch(ROWS), SFT(), 2, "token_mean")
        after[clip_grad] = (result.grad_norm, weights_of(policy))
    norms = [norm for norm, _ in after.values()]
    assert norms[0] == norms[1] == norms[2] > 0.5
    name = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(after[0.0][1][name], after[1e9][1][name])
    assert not torch.equal(after[0.0][1][name], after[0.5][1][name])


def test_new_phase_starts_with_fresh_moments(layout: Layout) -> None:
    fresh, used = policy_with(layout, CONFIG), policy_with(layout, CONFIG)
    update(used, random_batch(2, seed=5), SFT(), 2, "token_mean")
    used.load(noisy_weights(used.recipe.model))
    used.start_phase(CONFIG, 4)
    for policy in (fresh, used):
        update(policy, random_batch(2), SFT(), 2, "token_mean")
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(fresh.export(), used.export(), strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_updates_nothing(layout: Layout, value: float) -> None:
    policy = policy_with(layout, CONFIG)
    batch = grpo_batch(policy)
    assert batch.advantages_BT is not None
    before = weights_of(policy)
    broken = replace(batch, advantages_BT=batch.advantages_BT.clone().index_fill(0, torch.tensor([0]), value))
    done = update(policy, broken, GRPO(), 2, "token_mean")
    assert done.nonfinite and done.skipped and not done.metrics
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.export())


@pytest.mark.parametrize("size", [3, 8])
def test_sequences_that_do_not_fill_micro_batches_are_refused(layout: Layout, size: int) -> None:
    policy = policy_with(layout, CONFIG)
    with pytest.raises(ValueError, match=f"4 sequences do not split into micro-batches of {size}"):
        update(policy, random_batch(ROWS), SFT(), size, "token_mean")
    with pytest.raises(ValueError, match=f"4 sequences do not split into micro-batches of {size}"):
        policy.log_probs(random_batch(ROWS), size)


def test_forward_step_refuses_a_model_that_averages_micro_batches(layout: Layout) -> None:
    policy = policy_with(layout, CONFIG)
    policy.models[0].config.calculate_per_token_loss = False
    step = policy_forward_step(SFT(), vocab_size=VOCAB)
    empty: Iterator[TrainBatch] = iter(())
    with pytest.raises(ValueError, match="calculate_per_token_loss"):
        step(empty, policy.models[0])


def test_forward_step_refuses_a_batch_without_totals(layout: Layout) -> None:
    policy = policy_with(layout, CONFIG)
    with pytest.raises(ValueError, match="with_totals"):
        policy_forward_step(SFT(), vocab_size=VOCAB)(iter([random_batch(ROWS)]), policy.models[0])


def test_metrics_are_what_megatrons_training_loop_adds_up(layout: Layout) -> None:
    """megatron.training (0.19) flattens each value and takes two elements for a sum and its count."""
    policy = policy_with(layout, CONFIG)
    batch = random_batch(ROWS).with_totals()
    output, loss_func = policy_forward_step(SFT(), vocab_size=VOCAB)(iter([batch]), policy.models[0])
    loss, tokens, metrics = loss_func(output)
    assert loss.requires_grad and loss.ndim == 0
    assert int(tokens) == int(batch.mask_BT.sum())
    for name, value in metrics.items():
        assert value.numel() == 2
        assert not value.requires_grad
        assert value[1] > 0, name
    torch.testing.assert_close(metrics["loss"][0] / metrics["loss"][1], loss.detach() / tokens)
