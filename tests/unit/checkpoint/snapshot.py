"""All that a checkpoint must bring back, as plain values that can be compared bit for bit."""

from typing import Any

import torch

from megarl.config.training import OptimizerConfig
from megarl.megatron.policy import Policy
from megarl.megatron.world import Layout
from megarl.objectives import SFT
from tests.unit.megatron.tiny import VOCAB, noisy_weights, random_batch, tiny_recipe

# isort: split
# after megarl.megatron, which prepares torch for it
from megatron.core import tensor_parallel

CONFIG = OptimizerConfig(lr=1e-2, warmup_steps=2, weight_decay=0.1)
STEPS = 8
ROWS = 4


def policy_under(layout: Layout, weights_seed: int, **parallel_and_model: Any) -> Policy:
    """A policy at the start of a phase."""
    recipe = tiny_recipe(**parallel_and_model)
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model, weights_seed))
    policy.start_phase(CONFIG, STEPS)
    return policy


def train(policy: Policy, first: int, count: int) -> None:
    """Updates number first to first + count - 1, each on its own batch; each draws from every generator."""
    for number in range(first, first + count):
        policy.update(random_batch(ROWS, seed=number), SFT(), micro_batch_size=1)
        draw()


def draw() -> torch.Tensor:
    """Numbers from the default generator and from Megatron's tracker."""
    with tensor_parallel.get_cuda_rng_tracker().fork():
        tracked = torch.rand(3)
    return torch.cat([torch.rand(3), tracked])


def snapshot(policy: Policy) -> dict[str, Any]:
    """Weights, moments, step counts, schedule and generators of this rank."""
    held: Any = policy.optimizer.state_dict()
    # experts have an optimizer of their own
    optimizers = held if isinstance(held, list) else [held]
    groups = [group for optimizer in optimizers for group in optimizer["param_groups"]]
    settings = [{k: v for k, v in group.items() if k != "params"} for group in groups]
    return {
        "weights": {name: parameter.detach().clone() for name, parameter in policy.models[0].named_parameters()},
        "moments": {
            (number, index, name): value.clone()
            for number, optimizer in enumerate(optimizers)
            for index, state in optimizer["state"].items()
            for name, value in state.items()
            if isinstance(value, torch.Tensor)
        },
        "groups": settings,
        "scheduler": dict(policy.scheduler.state_dict()),
        "generators": {
            "cpu": torch.get_rng_state(),
            **{name: state.clone() for name, state in tensor_parallel.get_cuda_rng_tracker().get_states().items()},
        },
    }


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Paths at which two snapshots are not equal bit for bit."""
    if isinstance(a, dict):
        if not isinstance(b, dict) or a.keys() != b.keys():
            return [f"{path}: other keys"]
        return [found for key in a for found in differences(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, list):
        pairs = list(zip(a, b, strict=True))
        return [found for place, (x, y) in enumerate(pairs) for found in differences(x, y, f"{path}/{place}")]
    if isinstance(a, torch.Tensor):
        return [] if torch.equal(a, b) else [path]
    return [] if a == b else [f"{path}: {a} and {b}"]
