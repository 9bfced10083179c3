"""Loss, log-probs and gradients of one batch under a layout, for test_layouts."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megarl.config.training import OptimizerConfig
from megarl.megatron.batch import TrainBatch, on_targets
from megarl.megatron.micro_batches import TokenBudget
from megarl.megatron.policy import Policy
from megarl.megatron.world import join_world
from megarl.objectives import GRPO, EntropyBonus, KLPenalty
from tests.parallel.layouts import CASES, MODELS, Case
from tests.unit.megatron.tiny import VOCAB, noisy_weights, random_batch, tiny_recipe, with_random_routing

# isort: split
from megatron.core import parallel_state

ROWS = 8
LR, EPSILON = 1e9, 1e6


def batch() -> TrainBatch:
    """Ragged rows with advantages and log-probs of an older policy."""
    ragged = random_batch(ROWS, seed=2)
    generator = torch.Generator().manual_seed(4)
    old, reference = (
        on_targets(ragged, [(-2.5 + torch.randn(int(n), generator=generator)).tolist() for n in ragged.mask_BT.sum(1)])
        for _ in range(2)
    )
    return ragged.with_rollout(
        torch.randn(ROWS, generator=generator), old_log_probs_BT=old, reference_log_probs_BT=reference
    )


def run(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, dict[str, Tensor]]:
    """Case to what it gave, for the cases of this many ranks; alone, the models themselves too."""
    results = {}
    if world_size == 1:
        results |= {name: _run(Case(name, 1, model=name)) for name in MODELS}
    for case in CASES:
        if case.ranks == world_size:
            results[case.name] = _run(case)
    return results


def _run(case: Case) -> dict[str, Tensor]:
    """An update whose step is in proportion to the gradient: Adam's first, at an epsilon far above any gradient.

    The step is a thousand times the gradient, so that next to it the weights it is taken off leave no rounding.
    """
    recipe = tiny_recipe(world_size=case.ranks, **case.keys, **MODELS[case.model])
    layout = join_world(recipe.parallel, seed=1)
    policy = Policy(recipe, layout, VOCAB)
    read = noisy_weights(recipe.model)
    policy.load(read)
    policy.start_phase(OptimizerConfig(lr=LR, eps=EPSILON, clip_grad=0.0, min_lr_ratio=1.0), 10)
    before = {name: tensor.clone() for name, tensor in policy.export()}
    assert all(torch.equal(tensor, read(name)) for name, tensor in before.items()), "the round trip changed a weight"
    size = 1 if case.packed is None else TokenBudget(case.packed)
    whole = batch() if recipe.rl.routing_replay == "none" else with_random_routing(batch(), recipe.model)
    log_probs_BT = policy.log_probs(whole, size)
    update = policy.update(whole, EntropyBonus(KLPenalty(GRPO(), 0.05), 0.01), micro_batch_size=size)
    gradients = {name: (before[name] - tensor) * (EPSILON / LR) for name, tensor in policy.export()}
    parallel_state.destroy_model_parallel()
    return {
        "log_probs": log_probs_BT[whole.mask_BT],
        "loss": torch.tensor(update.loss),
        "grad_norm": torch.tensor(update.grad_norm),
        **{f"gradient of {name}": gradient for name, gradient in gradients.items()},
    }
