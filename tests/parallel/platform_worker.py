"""The platform's layers, collectives and checkpoint writer on two ranks."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import megarl.platform

megarl.platform.install()

from megatron.core import dist_checkpointing, parallel_state, tensor_parallel  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.transformer.enums import AttnMaskType  # noqa: E402

from megarl.platform.checkpoint_writer import plan_write  # noqa: E402
from megarl.platform.layers.attention import CoreAttention  # noqa: E402
from megarl.platform.layers.zigzag import query_positions  # noqa: E402
from tests.unit.platform.reference import plain_attention, random_qkv, tiny_batch, tiny_config, tiny_gpt  # noqa: E402


def attention_and_collectives(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, Any]:
    """Largest errors of context-parallel attention and of an all-to-all with splits in tensors; a refusal."""
    _parallel(context_parallel_size=2)
    errors: dict[str, Any] = {"refusal": _refusal_of_odd_lengths()}
    for name, bounds in args["layouts"].items():
        for causal in (True, False):
            output, gradient = _attention_error(rank, bounds, packed=name != "batch", causal=causal)
            errors[f"{name} causal={causal} output"] = output
            errors[f"{name} causal={causal} gradient"] = gradient
    sent = torch.arange(3.0) + 10 * rank
    received = torch.empty(4 if rank == 0 else 2)
    # Rank 0 sends 2 and 1 numbers, rank 1 sends 2 and 1: rank 0 receives 2 + 2 and rank 1 receives 1 + 1.
    arriving = torch.tensor([2, 2] if rank == 0 else [1, 1])
    dist.all_to_all_single(received, sent, arriving, torch.tensor([2, 1]))
    expected = torch.tensor([0.0, 1, 10, 11] if rank == 0 else [2.0, 12])
    errors["all_to_all"] = (received - expected).abs().max().item()
    parts = [torch.empty(1, 2), torch.empty(3, 2)]
    dist.all_gather(parts, torch.full((1 + 2 * rank, 2), 5.0 + rank))
    errors["all_gather"] = max((parts[0] - 5).abs().max().item(), (parts[1] - 6).abs().max().item())
    scattered = torch.empty(1 + 2 * rank, 2)
    dist.reduce_scatter(scattered, [torch.full((1, 2), 1.0 + rank), torch.full((3, 2), 3.0 + rank)])
    # 1 + 2 for rank 0, 3 + 4 for rank 1
    errors["reduce_scatter"] = (scattered - (3.0 + 4 * rank)).abs().max().item()
    return errors


def tensor_parallel_model(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, float]:
    """Errors of a model under tensor and sequence parallelism against one rank, and of its saved and loaded copy."""
    _parallel()
    torch.manual_seed(1)
    whole = tiny_gpt(tiny_config())
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
            dist.broadcast(parameter, 0)
    expected = _losses_and_gradients(whole)
    _parallel(tensor_model_parallel_size=2)
    split = tiny_gpt(tiny_config(tensor_model_parallel_size=2, sequence_parallel=True))
    _copy_shards(whole, split, rank)
    found = _losses_and_gradients(split)
    errors = {"loss": (found["loss"] - expected["loss"]).abs().max().item()}
    for name, parameter in split.named_parameters():
        gradient = found[name]
        if getattr(parameter, "sequence_parallel", False):
            dist.all_reduce(gradient)
        reference = _shard(name, parameter, expected[name], rank)
        errors[name] = ((gradient - reference).abs().max() / expected[name].abs().max()).item()
    errors["checkpoint"] = _reload_error(split, rank, result_dir)
    return errors


def _parallel(**sizes: int) -> None:
    if parallel_state.is_initialized():
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(**sizes)
    tensor_parallel.model_parallel_cuda_manual_seed(1, force_reset_rng=True)


def _refusal_of_odd_lengths() -> str:
    """What is said of a sequence that two ranks cannot share in zigzag."""
    module = CoreAttention(tiny_config(context_parallel_size=2), 1, AttnMaskType.causal, "self")
    try:
        module(*random_qkv(tokens=3, batch=1, heads=4, groups=2, seed=1), None)
    except ValueError as error:
        return str(error)
    return "accepted"


def _attention_error(rank: int, bounds: list[int], packed: bool, causal: bool) -> tuple[float, float]:
    """Largest errors of this rank's outputs and of its share of the gradients."""
    qkv = random_qkv(tokens=bounds[-1], batch=1 if packed else 2, heads=4, groups=2, seed=3)
    reference = plain_attention(*qkv, bounds=bounds, causal=causal)
    direction = torch.randn(reference.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    expected = torch.autograd.grad((reference * direction).sum(), qkv)
    lengths = torch.tensor(bounds).diff().tolist()
    held = torch.cat([start + query_positions(n, 2, rank) for start, n in zip(bounds, lengths, strict=False)])
    local = [x.detach()[held].requires_grad_() for x in qkv]
    sequences = None
    if packed:
        cumulative = torch.tensor(bounds, dtype=torch.int32)
        sequences = PackedSeqParams(qkv_format="thd", cu_seqlens_q=cumulative, cu_seqlens_kv=cumulative)
    kind = AttnMaskType.causal if causal else AttnMaskType.no_mask
    module = CoreAttention(tiny_config(context_parallel_size=2), 1, kind, "self")
    inputs = [x.squeeze(1) for x in local] if packed else local
    output = module(*inputs, None, packed_seq_params=sequences).reshape(len(held), *reference.shape[1:]).double()
    found = torch.autograd.grad((output * direction[held]).sum(), local)
    gradient_errors = [(a - b[held]).abs().max().item() for a, b in zip(found, expected, strict=True)]
    return (output - reference[held]).abs().max().item(), max(gradient_errors)


def _losses_and_gradients(model: Any) -> dict[str, Tensor]:
    """Token losses [2, 16] under 'loss', each parameter's gradient of their mean under its name."""
    tokens, positions, labels = tiny_batch()
    losses = model(tokens, positions, None, labels=labels)
    losses.mean().backward()
    return {"loss": losses.detach()} | {name: parameter.grad for name, parameter in model.named_parameters()}


def _shard(name: str, parameter: Any, full: Tensor, rank: int) -> Tensor:
    """This rank's half of a full tensor, in Megatron's layout."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return full
    # Gate and up are stacked in one weight; each is cut.
    pieces = full.chunk(2, 0) if "linear_fc1" in name else (full,)
    return torch.cat([piece.chunk(2, parameter.partition_dim)[rank] for piece in pieces], parameter.partition_dim)


@torch.no_grad()
def _copy_shards(whole: Any, split: Any, rank: int) -> None:
    full = dict(whole.named_parameters())
    for name, parameter in split.named_parameters():
        parameter.copy_(_shard(name, parameter, full[name], rank))


def _reload_error(model: Any, rank: int, folder: Path) -> float:
    """Largest difference between a model and its saved and loaded copy."""
    if rank == 0:
        (folder / "checkpoint").mkdir()
    dist.barrier()
    pending = plan_write({"model": model.sharded_state_dict()}, folder / "checkpoint")
    pending.write()
    dist.barrier()
    pending.finish()
    pending.write_index()
    dist.barrier()
    copy = tiny_gpt(model.config)
    copy.load_state_dict(
        dist_checkpointing.load({"model": copy.sharded_state_dict()}, str(folder / "checkpoint"))["model"]
    )
    loaded = dict(copy.named_parameters())
    errors = [(parameter - loaded[name]).abs().max().item() for name, parameter in model.named_parameters()]
    return float(max(errors))
