"""The load-balancing loss against the formula in transformers' network, however the batch is cut."""

from dataclasses import replace

import pytest
import torch

from megarl.config.training import OptimizerConfig
from megarl.megatron.batch import TrainBatch
from megarl.megatron.forward import policy_forward_step
from megarl.megatron.micro_batches import MicroBatchSize, TokenBudget
from megarl.megatron.policy import Policy
from megarl.megatron.router import routers
from megarl.megatron.schedule import own_share, run_schedule
from megarl.megatron.world import Layout
from megarl.objectives import Normalisation
from megarl.objectives.sft import SFT
from tests.parallel.gradient_worker import TEMPERATURE, gradient_of
from tests.unit.megatron.hf import hf_gradients, hf_log_probs
from tests.unit.megatron.moe import ROWS, Reference, moe_recipe
from tests.unit.megatron.tiny import VOCAB, noisy_weights, random_batch

COEFFICIENT = 0.3


def batch() -> TrainBatch:
    """Rows of unequal lengths, one of them without a trained token."""
    ragged = random_batch(ROWS, seed=3)
    ragged.mask_BT[1] = False
    return ragged.with_totals()


@pytest.mark.parametrize("size", [1, 2, 4, TokenBudget(20), TokenBudget(40)], ids=str)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_gradient_is_the_coefficient_times_that_of_the_formula(
    layout: Layout, size: MicroBatchSize, recompute: str
) -> None:
    recipe = moe_recipe(recompute=recompute, moe={"aux_loss_coefficient": COEFFICIENT})
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    found, _ = gradient_of(policy, SFT(), Normalisation(), batch(), size)
    reference = Reference(recipe, batch())
    log_probs_BT = hf_log_probs(reference.network, batch(), TEMPERATURE)
    (-log_probs_BT[batch().mask_BT].mean() + COEFFICIENT * reference.balance()).backward()
    wanted = hf_gradients(reference.network)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        # fp32 against fp64
        assert (found[name] - gradient).abs().max() <= 1e-5 * gradient.abs().max(), name


def test_without_a_coefficient_the_gradient_is_another(layout: Layout) -> None:
    """By as much as the routers' gradient is large, so that the test above would see a loss that is missing."""
    gates = []
    for coefficient in (0.0, COEFFICIENT):
        recipe = moe_recipe(moe={"aux_loss_coefficient": coefficient})
        policy = Policy(recipe, layout, VOCAB)
        policy.load(noisy_weights(recipe.model))
        found, _ = gradient_of(policy, SFT(), Normalisation(), batch(), 2)
        gates.append(found["model.layers.0.mlp.gate.weight"])
    assert (gates[0] - gates[1]).abs().max() > 0.1 * gates[0].abs().max()


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_metrics_are_counts_of_the_tokens(layout: Layout, recompute: str) -> None:
    recipe = moe_recipe(recompute=recompute)
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    policy.start_phase(OptimizerConfig(), 2)
    metrics = policy.update(replace(batch()), SFT(), micro_batch_size=2).metrics
    reference = Reference(recipe, batch())
    with torch.no_grad():
        hf_log_probs(reference.network, batch())
    is_read = torch.arange(batch().tokens_BT.shape[1]) < batch().lengths_B[:, None]
    loads = [torch.bincount(chosen[is_read.flatten()].flatten(), minlength=4) for chosen in reference.chosen.values()]
    relative = torch.stack([load / load.double().mean() for load in loads])
    assert metrics["moe/load_max"] == pytest.approx(relative.amax(1).mean().item())
    assert metrics["moe/load_min"] == pytest.approx(relative.amin(1).mean().item())
    assert metrics["moe/aux_loss"] == pytest.approx(reference.balance().item() / len(loads), rel=1e-5)


def test_a_micro_batch_of_padding_alone_adds_nothing(layout: Layout) -> None:
    """Ranks whose sequences ran out still run one."""
    recipe = moe_recipe(moe={"aux_loss_coefficient": COEFFICIENT})
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    policy.start_phase(OptimizerConfig(), 2)
    share = own_share(policy.wrapped, layout, batch(), ROWS)
    empty = replace(batch()[[]], packed_tokens=4)
    step = policy_forward_step(SFT(), vocab_size=VOCAB)
    for stage in policy.wrapped:
        stage.zero_grad_buffer()
    run_schedule(policy.wrapped, step, replace(share, micro_batches=[empty]), forward_only=False)
    assert all(parameter.main_grad.abs().max() == 0 for parameter in policy.models[0].parameters())
    assert all(router.loads_E.sum() == 0 and router.balance == 0 for router in routers(policy.models))
