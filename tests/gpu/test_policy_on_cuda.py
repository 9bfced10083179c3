"""The policy on a GPU: Transformer Engine's layers where it is installed, NCCL, packed sequences."""

import importlib.util

import pytest
import torch

from megarl.config.training import OptimizerConfig
from megarl.megatron.micro_batches import MicroBatchSize, TokenBudget
from megarl.megatron.policy import Policy
from megarl.megatron.schedule import Update
from megarl.megatron.world import Layout
from megarl.objectives import GRPO, EntropyBonus, KLPenalty
from megarl.platform.platform import current
from tests.unit.megatron.hf import hf_log_probs, hf_model
from tests.unit.megatron.tiny import VOCAB, noisy_weights, random_batch, rl_batch, tiny_recipe

ROWS = 8
SIZES = {"rows": 2, "packed": TokenBudget(40)}
# fp32 products may be formed from TF32 parts by the libraries; 10 bits of mantissa
RELATIVE = 2**-10


def policy_on(layout: Layout) -> Policy:
    recipe = tiny_recipe(head_dim=32, hidden_size=64)
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    return policy


def test_the_platform_is_cuda(layout: Layout) -> None:
    assert current().name == "cuda" and torch.distributed.get_backend() == "nccl"
    total = torch.ones(1, device=current().device)
    torch.distributed.all_reduce(total)
    assert total.item() == layout.world_size


@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
def test_log_probs_are_those_of_transformers_on_the_cpu(layout: Layout, size: MicroBatchSize) -> None:
    policy, batch = policy_on(layout), random_batch(ROWS)
    network = hf_model(policy.recipe.model, noisy_weights(policy.recipe.model), torch.float64)
    wanted = hf_log_probs(network, batch)[batch.mask_BT]
    got = policy.log_probs(random_batch(ROWS, device=current().device), size).cpu()[batch.mask_BT]
    assert (got.double() - wanted).abs().max() <= RELATIVE * wanted.abs().max()


def test_packed_and_padded_updates_agree(layout: Layout) -> None:
    def update(size: MicroBatchSize) -> Update:
        policy = policy_on(layout)
        policy.start_phase(OptimizerConfig(), 2)
        ragged = random_batch(ROWS, device=current().device)
        batch = rl_batch(ROWS, policy.log_probs(ragged, size), device=current().device)
        return policy.update(batch, EntropyBonus(KLPenalty(GRPO(), 0.05), 0.01), micro_batch_size=size)

    padded, packed = (update(size) for size in SIZES.values())
    assert packed.loss == pytest.approx(padded.loss, rel=RELATIVE)
    assert packed.grad_norm == pytest.approx(padded.grad_norm, rel=RELATIVE)


def test_transformer_engines_layers_are_taken(layout: Layout) -> None:
    if importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("transformer-engine is not installed")
    modules = policy_on(layout).models[0].modules()
    assert any(type(module).__module__.startswith("megatron.core.extensions.transformer_engine") for module in modules)
