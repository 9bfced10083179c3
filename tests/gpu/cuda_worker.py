"""What a process of its own does on a GPU: a world over NCCL, CUDA graphs, memory of another process."""

import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megarl.config.model import ParallelConfig
from megarl.config.precision import PrecisionConfig
from megarl.megatron import model
from megarl.megatron.policy import Policy
from megarl.megatron.world import Layout, join_world
from megarl.objectives import SFT
from megarl.platform.platform import current
from tests.unit.megatron.test_precision import CONFIG
from tests.unit.megatron.tiny import VOCAB, noisy_weights, random_batch, tiny_recipe

# isort: split
# after megarl.megatron, which prepares torch for it
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer import cuda_graphs

ROWS, UPDATES = 4, 4
SHAPE = {"hidden_size": 64, "head_dim": 32}


def sums_and_export(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, Any]:
    """A sum over the ranks, and every weight as it comes out of a tensor-parallel policy."""
    policy = _policy(join_world(ParallelConfig(tensor=world_size, world_size=world_size), seed=1), world_size)
    total = torch.full((1000,), rank + 1.0, device=current().device)
    dist.all_reduce(total)
    weights = {name: tensor.cpu() for name, tensor in policy.export()}
    return {"backend": dist.get_backend(), "total": total.cpu(), "weights": weights}


def eager_and_graphed(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, Any]:
    """Losses and gradient norms of some updates without and with Megatron-core's own CUDA graphs of the layers."""
    layout = join_world(ParallelConfig(), seed=1)
    eager = _updates(_policy(layout))
    # a state of the random numbers that a graph can hold
    model_parallel_cuda_manual_seed(1, use_cudagraphable_rng=True, force_reset_rng=True)
    stock = model.transformer_options

    def graphed_options(precision: PrecisionConfig) -> dict[str, Any]:
        return stock(precision) | {"cuda_graph_impl": "local"}

    model.transformer_options = graphed_options
    graphed = _updates(_policy(layout))
    created = cuda_graphs._CudagraphGlobalRecord.cudagraph_created
    cuda_graphs.delete_cuda_graphs()
    return {"eager": eager, "graphed": graphed, "created": created}


def negate_shared(shared: Tensor, answers: Any) -> None:
    """Digests memory that another process owns, then writes to it."""
    digest = hashlib.sha256(shared.cpu().numpy().tobytes()).hexdigest()
    shared.neg_()
    torch.cuda.synchronize()
    answers.put(digest)


def _policy(layout: Layout, tensor: int = 1) -> Policy:
    recipe = tiny_recipe(tensor=tensor, world_size=tensor, **SHAPE)
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    policy.start_phase(CONFIG, 100)
    return policy


def _updates(policy: Policy) -> list[tuple[float, float]]:
    """All of one shape, as graphs are."""
    batch = random_batch(ROWS, device=current().device)
    updates = [policy.update(batch, SFT(), micro_batch_size=ROWS) for _ in range(UPDATES)]
    return [(update.loss, update.grad_norm) for update in updates]
