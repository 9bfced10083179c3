"""Replayed routing against transformers' network that is forced to the same experts."""

import pytest
import torch

from megarl.megatron.policy import FrozenModel, Policy
from megarl.megatron.world import Layout
from megarl.objectives import Normalisation
from megarl.objectives.sft import SFT
from tests.parallel.gradient_worker import TEMPERATURE, gradient_of
from tests.unit.megatron.hf import hf_gradients, hf_log_probs
from tests.unit.megatron.moe import DENSE_LAYER, Reference, moe_recipe, replay_batch
from tests.unit.megatron.tiny import VOCAB, noisy_weights


def policy_with(layout: Layout, replay: str) -> Policy:
    recipe = moe_recipe(routing_replay=replay)
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    return policy


@pytest.mark.parametrize("replay", ["measure", "experts", "weights"])
def test_log_probs_are_those_of_a_network_forced_to_the_experts(layout: Layout, replay: str) -> None:
    recipe = moe_recipe()
    batch = replay_batch(recipe)
    reference = Reference(recipe, batch, "none" if replay == "measure" else replay)
    with torch.no_grad():
        wanted = hf_log_probs(reference.network, batch)[batch.mask_BT]
        plain = hf_log_probs(Reference(recipe, batch).network, batch)[batch.mask_BT]
    found, _ = policy_with(layout, replay).log_probs_and_agreement(batch, 2)
    torch.testing.assert_close(found[batch.mask_BT].double(), wanted, rtol=0.0, atol=1e-5)
    # the ids are of no router, so that replaying them shows
    assert (replay == "measure") == ((wanted - plain).abs().max() < 1e-2)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("replay", ["experts", "weights"])
def test_gradients_flow_through_the_live_gates(layout: Layout, replay: str, recompute: str) -> None:
    recipe = moe_recipe(routing_replay=replay, recompute=recompute)
    batch = replay_batch(recipe)
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    found, _ = gradient_of(policy, SFT(), Normalisation(), batch, 2)
    reference = Reference(recipe, batch, replay)
    (-hf_log_probs(reference.network, batch, TEMPERATURE)[batch.mask_BT].mean()).backward()
    for name, gradient in hf_gradients(reference.network).items():
        assert gradient.abs().max() > 0, name
        # fp32 against fp64
        assert (found[name] - gradient).abs().max() <= 1e-5 * gradient.abs().max(), name


def test_agreement_is_counted_over_tokens_and_layers(layout: Layout) -> None:
    recipe = moe_recipe()
    batch = replay_batch(recipe)
    reference = Reference(recipe, batch)
    with torch.no_grad():
        hf_log_probs(reference.network, batch)
    _, metrics = policy_with(layout, "measure").log_probs_and_agreement(batch, 2)
    assert batch.routed_experts_BTLK is not None
    same, shared, pairs = 0, 0.0, 0
    for layer, chosen in reference.chosen.items():
        assert layer != DENSE_LAYER
        given = batch.routed_experts_BTLK[:, :, layer].flatten(0, 1)
        for own, engine in zip(chosen.tolist(), given.tolist(), strict=True):
            if engine[0] >= 0:
                same, pairs = same + ({*own} == {*engine}), pairs + 1
                shared += len({*own} & {*engine}) / len(own)
    assert 0 < same < pairs
    assert metrics == {
        "routing_agreement": pytest.approx(same / pairs),
        "routing_overlap": pytest.approx(shared / pairs),
    }


@pytest.mark.parametrize("replay", ["none", "experts"])
def test_a_reference_keeps_its_own_routing(layout: Layout, replay: str) -> None:
    recipe = moe_recipe(routing_replay=replay)
    batch = replay_batch(recipe)
    reference = FrozenModel(recipe, layout, VOCAB)
    reference.load(noisy_weights(recipe.model))
    with torch.no_grad():
        wanted = hf_log_probs(Reference(recipe, batch).network, batch)[batch.mask_BT]
    found = reference.log_probs(batch, 2)[batch.mask_BT]
    torch.testing.assert_close(found.double(), wanted, rtol=0.0, atol=1e-5)
