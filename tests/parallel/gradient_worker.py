"""The gradient of one fixed batch under a layout, for test_gradient_invariance."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megarl.config.schema import Recipe
from megarl.config.training import OptimizerConfig
from megarl.drift.corrections import TIS, CorrectedObjective, Correction, RejectTokens
from megarl.megatron.batch import TrainBatch, on_targets, pad_batch
from megarl.megatron.collect import reduce_metrics
from megarl.megatron.critic import Critic
from megarl.megatron.distribution import Sampling
from megarl.megatron.forward import policy_forward_step
from megarl.megatron.micro_batches import MicroBatchSize, TokenBudget
from megarl.megatron.policy import FrozenModel, Policy
from megarl.megatron.reference_kl import beside_reference
from megarl.megatron.schedule import own_share, run_schedule
from megarl.megatron.weights import random_weights
from megarl.megatron.world import join_world
from megarl.objectives import OBJECTIVES, EntropyBonus, KLPenalty, Normalisation, Objective
from megarl.objectives.covariance import select_largest, token_covariance
from megarl.objectives.normalisation import MODES
from tests.unit.megatron.tiny import VOCAB, tiny_recipe

# isort: split
from megatron.core import parallel_state

ROWS, CONSTANT = 8, 12
TEMPERATURE = 0.8
OBJECTIVE_MODES = [(name, "token_mean") for name in OBJECTIVES] + [("ppo", mode) for mode in MODES]
OBJECTIVE_MODES += [("exact KL", "token_mean"), ("gspo", "seq_mean_token_mean"), ("k2_5", "seq_mean_token_sum_norm")]
WHOLE, MIXED = "rows 8", "packed 24 shuffled"
"""Labels of the micro-batches under which every objective has every mode."""
EVERY = [(name, mode) for name in OBJECTIVES for mode in MODES]


def fixed_batch() -> TrainBatch:
    """Rows of very unequal lengths, one of them without a trained token; log-probs that make every clip act.

    A quarter of the tokens is selected by covariance.
    """
    generator = torch.Generator().manual_seed(5)
    lengths = [1, 9, 3, 14, 2, 7, 11, 5]
    responses = [torch.randint(0, VOCAB, (length,), generator=generator).tolist() for length in lengths]
    prompts = [torch.randint(0, VOCAB, (2 + row % 3,), generator=generator).tolist() for row in range(ROWS)]
    batch = pad_batch(prompts, responses, torch.device("cpu"))
    values = [(-2.5 + torch.randn(4, length, generator=generator)).tolist() for length in lengths]
    old, rollout, reference, _ = (on_targets(batch, [row[kind] for row in values]) for kind in range(4))
    advantages = torch.randn(ROWS, generator=generator)
    batch.mask_BT[6] = False
    batch = batch.with_rollout(
        advantages, old_log_probs_BT=old, rollout_log_probs_BT=rollout, reference_log_probs_BT=reference
    ).with_totals()
    assert batch.advantages_BT is not None
    covariance_BT = token_covariance(old, batch.advantages_BT, batch.mask_BT)
    return replace(batch, selected_BT=select_largest(covariance_BT, batch.mask_BT, 0.25))


def micro_batch_size(label: str) -> MicroBatchSize:
    """What 'rows 4' or 'packed 24' stands for."""
    kind, number = label.split()[:2]
    return {"rows": int, "packed": TokenBudget}[kind](int(number))


def gradients(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, dict[str, Tensor]]:
    """Case to the full gradient by Hugging Face name, for every layout, micro-batch size and objective asked for."""
    results = {}
    for layout_name, sizes in args["layouts"].items():
        recipe = tiny_recipe(world_size=world_size, **sizes)
        layout = join_world(recipe.parallel, seed=1)
        policy = Policy(recipe, layout, VOCAB)
        for label in args["micro_batches"]:
            size = micro_batch_size(label)
            more = [pair for pair in EVERY if pair not in OBJECTIVE_MODES] if label in (WHOLE, MIXED) else []
            for name, mode in OBJECTIVE_MODES + more:
                policy.load(random_weights(recipe.model, VOCAB, seed=3))
                gradient = _gradient(policy, name, mode, size, shuffled="shuffled" in label)
                results[f"{layout_name} {label} {name} {mode}"] = gradient
            results[f"{layout_name} {label} critic"] = _critic(Critic(recipe, layout, VOCAB), recipe, size)
        parallel_state.destroy_model_parallel()
    return results


def _critic(critic: Critic, recipe: Recipe, size: MicroBatchSize) -> dict[str, Tensor]:
    """Values after an update whose gradient reaches every layer, and that update's gradient norm."""
    critic.load(random_weights(recipe.model, VOCAB, seed=3))
    if critic.layout.is_last_stage:
        # a head of zeros would send no gradient to the body
        with torch.no_grad():
            critic.models[-1].output_layer.weight.copy_(torch.linspace(-1, 1, recipe.model.hidden_size)[None])
    critic.start_phase(OptimizerConfig(lr=1e-2), 2)
    batch = fixed_batch()
    before = critic.values(batch, size)
    generator = torch.Generator().manual_seed(8)
    returns = before + torch.randn(before.shape, generator=generator)
    update = critic.update(replace(batch, old_values_BT=before, returns_BT=returns), micro_batch_size=size, clip=0.2)
    norm = torch.tensor([update.grad_norm, update.loss])
    return {"before": before[batch.mask_BT], "norm": norm}


def _gradient(
    policy: Policy, name: str, mode: str, size: MicroBatchSize, *, shuffled: bool = False
) -> dict[str, Tensor]:
    loss = OBJECTIVES[{"exact KL": "ppo"}.get(name, name)]()
    if name not in ("dppo_tv", "decoupled_ppo"):
        loss = CorrectedObjective(loss, Correction([RejectTokens(0.1, 10.0)], TIS(2.0)))
    loss = EntropyBonus(KLPenalty(loss, 0.05, "full" if name == "exact KL" else "k3"), 0.01)
    reference = FrozenModel(policy.recipe, policy.layout, VOCAB) if name == "exact KL" else None
    normalisation = Normalisation(mode, CONSTANT if mode == "seq_mean_token_sum_norm" else None)
    batch = fixed_batch()
    if shuffled:
        batch = batch[[3, 6, 0, 7, 1, 5, 2, 4]]
    if reference is not None:
        reference.load(random_weights(policy.recipe.model, VOCAB, seed=4))
    return gradient_of(policy, loss, normalisation, batch, size, reference)[0]


def gradient_of(
    policy: Policy,
    loss: Objective,
    normalisation: Normalisation,
    batch: TrainBatch,
    size: MicroBatchSize,
    reference: FrozenModel | None = None,
) -> tuple[dict[str, Tensor], dict[str, tuple[float, float]]]:
    """The full gradient by Hugging Face name, which takes the weights' place, and the metrics' sums and counts."""
    head = None if reference is None else reference.stages[-1]
    step = policy_forward_step(
        loss, vocab_size=VOCAB, sampling=Sampling(TEMPERATURE), normalisation=normalisation, reference=head
    )
    share = own_share(policy.wrapped, policy.layout, batch, size)
    for stage in policy.wrapped:
        stage.zero_grad_buffer()
    share = share if reference is None else beside_reference(reference.stages, policy.layout, share)
    logs = run_schedule(policy.wrapped, step, share, forward_only=False)
    # gathered as weights are
    with torch.no_grad():
        for parameter in (each for model in policy.models for each in model.parameters()):
            parameter.copy_(parameter.main_grad)
    return {name: tensor.clone() for name, tensor in policy.export()}, reduce_metrics(logs, policy.layout)
