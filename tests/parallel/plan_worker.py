"""Bytes that a real model, its buffers, its optimizer and its update take, for test_plan_measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from megarl.config.model import ModelConfig, ParallelConfig
from megarl.config.precision import PrecisionConfig
from megarl.config.schema import Recipe
from megarl.config.training import OptimizerConfig
from megarl.megatron.batch import TrainBatch, pad_batch
from megarl.megatron.micro_batches import TokenBudget
from megarl.megatron.model import padded_vocabulary, transformer_config
from megarl.megatron.policy import Policy
from megarl.megatron.world import Layout, join_world
from megarl.objectives import SFT
from megarl.platform.layers.spec import gpt_block_spec
from tests.parallel.saved import SavedBytes
from tests.parallel.sent import SentBytes
from tests.unit.megatron.tiny import FP32, noisy_weights

# isort: split
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import MegatronOptimizer, get_megatron_optimizer
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig

VOCAB = 301
ROWS, MICRO, TOKENS = 8, 2, 32
"""Of a data-parallel rank's batch: responses, those of a micro-batch, and what the model reads of each."""
PROMPT = 3


def model_config(**others: Any) -> ModelConfig:
    """A model in which every part has a size of its own."""
    shape = {"num_layers": 4, "hidden_size": 48, "ffn_hidden_size": 112, "num_attention_heads": 4}
    return ModelConfig(**(shape | {"num_query_groups": 2, "head_dim": 16, "max_position_embeddings": 64} | others))


def full_rows(rows: int) -> TrainBatch:
    """Rows of which none is padded; all but the prompt is trained on."""
    return pad_batch([[1] * PROMPT] * rows, [[2] * (TOKENS + 1 - PROMPT)] * rows, torch.device("cpu"))


def measure_all(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, dict[str, int]]:
    """The bytes under each layout of `args["layouts"]`, and with each optimizer of `args["optimizers"]`."""
    found = {name: measure(world_size, **case) for name, case in args["layouts"].items()}
    return found | {name: with_optimizer(world_size, **case) for name, case in args["optimizers"].items()}


def joined(parallel: ParallelConfig) -> Layout:
    """Megatron-core's groups, laid anew over the processes that are there."""
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    return join_world(parallel, seed=1)


def measure(
    world_size: int,
    *,
    parallel: dict[str, Any],
    model: dict[str, Any] | None = None,
    packed: int | None = None,
    recompute: str = "none",
    precision: PrecisionConfig = FP32,
    place: Layout | None = None,
) -> dict[str, int]:
    """One update of a policy: what it holds after it, the most that autograd held during it, and what it sent.

    In the groups of `place` where they are laid already.
    """
    recipe = Recipe(
        model=model_config(**(model or {})),
        parallel=ParallelConfig(world_size=world_size, timeout_s=60, **parallel),
        precision=precision,
    )
    layout = place or joined(recipe.parallel)
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model, vocab=VOCAB))
    policy.start_phase(OptimizerConfig(), 2)
    _set_recompute(policy.models[0], recompute)
    batch = full_rows(ROWS * layout.data_size)
    size = MICRO if packed is None else TokenBudget(packed)
    with SavedBytes(without=policy.models[0].parameters()) as saved, SentBytes() as sent:
        policy.update(batch, SFT(), micro_batch_size=size)
    assert saved.now == 0
    return held(policy.models[0], policy.wrapped[0], policy.optimizer) | {"saved": saved.peak, "sent": sent.total}


def _set_recompute(model: GPTModel, recompute: str) -> None:
    """What a TransformerConfig would say from the start."""
    if recompute == "full":
        model.config.recompute_granularity, model.config.recompute_method = "full", "uniform"
        model.config.recompute_num_layers = 1
    elif recompute == "core_attention":
        for layer in model.decoder.layers:
            layer.self_attention.checkpoint_core_attention = True


def with_optimizer(world_size: int, *, bf16: bool, distributed: bool, experts: int = 0) -> dict[str, int]:
    """Megatron-core's own model, buffers and optimizer in a layout of data parallelism; one step on one micro-batch."""
    joined(ParallelConfig(world_size=world_size, timeout_s=60))
    dtype = torch.bfloat16 if bf16 else torch.float32
    config = replace(
        transformer_config(model_config(), ParallelConfig()), bf16=bf16, params_dtype=dtype, pipeline_dtype=dtype
    )
    if experts:
        moe = {"num_moe_experts": experts, "moe_router_topk": 2, "moe_ffn_hidden_size": 56}
        config = replace(config, **moe, moe_token_dispatcher_type="alltoall", moe_router_load_balancing_type="none")
    model = GPTModel(
        config,
        gpt_block_spec(config),
        vocab_size=padded_vocabulary(VOCAB, 1),
        max_sequence_length=64,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=True,
    )
    ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=distributed)
    wrapped = DistributedDataParallel(config=config, ddp_config=ddp, module=model)
    optimizer = get_megatron_optimizer(
        MegatronOptimizerConfig(optimizer="adam", lr=1e-3, bf16=bf16, use_distributed_optimizer=distributed), [wrapped]
    )
    tokens = torch.zeros(MICRO, TOKENS, dtype=torch.int64)
    positions = torch.arange(TOKENS).expand(MICRO, TOKENS)
    with SavedBytes(without=model.parameters()) as saved, SentBytes() as sent:
        before_norm: list[int] = []
        model.decoder.final_layernorm.register_forward_pre_hook(lambda *_: before_norm.append(saved.now))
        wrapped(tokens, positions, None).float().sum().backward()
        wrapped.finish_grad_sync()
        optimizer.step()
    return held(model, wrapped, optimizer) | {"saved": before_norm[0], "sent": sent.total}


def held(model: GPTModel, wrapped: DistributedDataParallel, optimizer: MegatronOptimizer) -> dict[str, int]:
    """Bytes of weights, gradient buffers and optimizer state, each storage once."""
    buffers = [*wrapped.buffers, *wrapped.expert_parallel_buffers]
    weights = [buffer.param_data for buffer in buffers if buffer.param_data is not None] or list(model.parameters())
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    inner = [one.optimizer for one in chained if one.optimizer is not None]
    state = [value for one in inner for values in one.state.values() for value in values.values()]
    own = {weight.untyped_storage().data_ptr() for weight in weights}
    main = [param for one in inner for group in one.param_groups for param in group["params"]]
    main = [param for param in main if param.untyped_storage().data_ptr() not in own]
    return {
        "weights": _bytes(weights),
        "gradients": _bytes([buffer.grad_data for buffer in buffers]),
        "optimizer": _bytes([*main, *(value for value in state if isinstance(value, torch.Tensor))]),
    }


def _bytes(tensors: list[torch.Tensor]) -> int:
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
