"""What one rank sees of weights, updates, generation and checkpoints under a layout, for test_weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megarl.checkpoint.hf import export_hf
from megarl.checkpoint.tensors import load_tensors, save_tensors
from megarl.config.model import TokenizerConfig
from megarl.config.training import OptimizerConfig
from megarl.data.tokenizer import build_tokenizer
from megarl.megatron.distribution import Sampling
from megarl.megatron.models.qwen2 import hf_config
from megarl.megatron.policy import Policy
from megarl.megatron.weights import random_weights
from megarl.megatron.world import Layout, join_world
from megarl.objectives import GRPO, EntropyBonus, KLPenalty, Normalisation
from megarl.objectives.normalisation import MODES
from megarl.rollout import Completion, Request, SamplingParams
from megarl.rollout.distribute import generate_on_all_ranks
from megarl.rollout.embedded import EmbeddedEngine
from tests.unit.checkpoint.snapshot import differences, policy_under, snapshot, train
from tests.unit.megatron.tiny import ALPHABET, VOCAB, noisy_weights, random_batch, rl_batch, tiny_recipe

# isort: split
# after megarl.megatron, which prepares torch for it
from megatron.core import parallel_state

ROWS = 4
CONFIG = OptimizerConfig(lr=1e-2, weight_decay=0.1, clip_grad=0.5, eps=1e-3)


def every_layout(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, dict[str, Any]]:
    """Layout to model to results; the layouts follow one another in one world."""
    results: dict[str, dict[str, Any]] = {}
    for layout_name, sizes in args["layouts"].items():
        recipe = tiny_recipe(world_size=world_size, **sizes)
        layout = join_world(recipe.parallel, seed=1)
        results[layout_name] = {"completions": completions(layout.rank, layout.world_size)}
        for model_name, model in args["models"].items():
            folder = result_dir / f"{layout_name}-{model_name}"
            results[layout_name][model_name] = _model(layout, sizes, model, folder)
        for updates in args["updates_before_saving"]:
            folder = result_dir / f"{layout_name}-{updates}"
            results[layout_name][f"resumed after {updates}"] = resume(layout, sizes, folder, updates)
        parallel_state.destroy_model_parallel()
    return results


def _model(layout: Layout, sizes: dict[str, int], model: dict[str, Any], folder: Path) -> dict[str, Any]:
    recipe = tiny_recipe(world_size=layout.world_size, temperature=0.8, **sizes, **model)
    policy = Policy(recipe, layout, VOCAB)
    policy.load(random_weights(recipe.model, VOCAB, 7))
    random = _weights(policy)
    policy.load(noisy_weights(recipe.model))
    loaded = _weights(policy)
    export_hf(policy, folder, build_tokenizer(TokenizerConfig(alphabet=ALPHABET, words=[])))
    log_probs = policy.log_probs(random_batch(ROWS), 1)
    updates = {}
    for mode in MODES:
        policy.load(noisy_weights(recipe.model))
        policy.start_phase(CONFIG, 4)
        batch = rl_batch(ROWS, log_probs)
        # one response without a trained token, so that ranks and micro-batches differ in what they count
        mask = batch.mask_BT.clone()
        mask[1] = False
        result = policy.update(
            replace(batch, mask_BT=mask),
            EntropyBonus(KLPenalty(GRPO(), 0.04)),
            micro_batch_size=1,
            sampling=Sampling(0.8),
            normalisation=Normalisation(mode, 7 if mode == "seq_mean_token_sum_norm" else None),
        )
        numbers = {"loss": result.loss, "grad_norm": result.grad_norm, "lr": result.lr, **result.metrics}
        updates[mode] = {"numbers": numbers, "weights": _weights(policy)}
    return {
        "random": random,
        "loaded": loaded,
        "log_probs": log_probs,
        "updates": updates,
        "padding": _padding(policy),
    }


def _weights(policy: Policy) -> dict[str, Tensor]:
    exported = [(name, tensor.clone()) for name, tensor in policy.export()]
    assert len({name for name, _ in exported}) == len(exported), "a tensor was exported twice"
    return dict(exported)


def _padding(policy: Policy) -> float:
    """Largest absolute value in the rows of this rank's embedding that no token has."""
    parameters = dict(policy.models[0].named_parameters())
    rows = parameters.get("embedding.word_embeddings.weight")
    if rows is None:
        return 0.0
    real = VOCAB - parallel_state.get_tensor_model_parallel_rank() * len(rows)
    return float(rows[real:].abs().sum()) if real < len(rows) else 0.0


def completions(rank: int, world_size: int) -> list[list[Completion]]:
    """All requests, and fewer than there are ranks, through engines that hold the same weights."""
    model = tiny_recipe().model
    engine = EmbeddedEngine(hf_config(model, VOCAB), seed=3, max_batch_size=4, device=torch.device("cpu"))
    read = noisy_weights(model)
    engine.load_weights([(name, read(name)) for name in dict(engine._model.named_parameters())], version=0)
    requests = [Request(f"p{row // 2}", row % 2, tuple(range(1, 2 + row % 5)), "rl/0") for row in range(7)]
    sampling = SamplingParams(temperature=0.8, max_new_tokens=10, stop_token_id=6)
    return [generate_on_all_ranks(engine, requests[:count], sampling, rank, world_size) for count in (7, 1, 0)]


def resume(layout: Layout, sizes: dict[str, Any], folder: Path, updates: int) -> list[str]:
    """What differs between a policy that trained on and one that was resumed; nothing should."""
    policy = policy_under(layout, 1, world_size=layout.world_size, **sizes)
    # generators differ between ranks, so that mixing them up would show
    torch.manual_seed(layout.rank)
    train(policy, 0, updates)
    if layout.is_main:
        folder.mkdir()
    torch.distributed.barrier()
    save_tensors(policy, folder, with_optimizer=updates > 0)
    at_save = snapshot(policy)
    train(policy, updates, 2)
    after = snapshot(policy)
    torch.save(after, folder.with_name(f"{folder.name}-rank{layout.rank}.snapshot"))
    other = policy_under(layout, 2, world_size=layout.world_size, **sizes)
    torch.manual_seed(99)
    load_tensors(other, folder, with_optimizer=updates > 0)
    # before any update the moments do not exist in the one and are zeros in the other
    found = differences(at_save, snapshot(other), "at the save") if updates else []
    train(other, updates, 2)
    return found + differences(after, snapshot(other), "after two updates")


def load_saved(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, list[str]]:
    """Layout to what a new world finds different from the snapshots that the first one left."""
    results = {}
    for name, sizes in args["layouts"].items():
        layout = join_world(tiny_recipe(world_size=world_size, **sizes).parallel, seed=5)
        policy = policy_under(layout, 2, world_size=world_size, **sizes)
        folder = result_dir / f"{name}-{args['updates']}"
        load_tensors(policy, folder, with_optimizer=args["updates"] > 0)
        train(policy, args["updates"], 2)
        expected = torch.load(result_dir / f"{name}-{args['updates']}-rank{rank}.snapshot", weights_only=False)
        results[name] = differences(expected, snapshot(policy))
        parallel_state.destroy_model_parallel()
    return results
