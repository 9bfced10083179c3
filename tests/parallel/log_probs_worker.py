"""Vocabulary-parallel log-probs on one rank, for test_log_probs."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megarl.megatron import chunk_logits, support
from megarl.megatron import log_probs as module
from megarl.megatron.distribution import Distribution, Sampling, VocabularyShard
from megarl.megatron.token_log_probs import token_log_probs


def score(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> list[dict[str, Tensor | None]]:
    """Log-probs, entropies and this shard's gradient of every case, by torch's operations or Triton's kernels."""
    if args["kernels"]:
        from megarl.platform.cuda import softmax

        chunk_logits.takes_kernels, softmax.BLOCK = (lambda _: True), 4
    return [_score(rank, case) for case in args["cases"]]


def _score(rank: int, case: dict[str, Any]) -> dict[str, Tensor | None]:
    columns = case["columns"]
    module.CHUNK_BYTES = case["chunk"] * 4 * columns
    support._FIRST_CANDIDATES = case["candidates"]
    support._GROWTH = 2
    padding = case["padding"]
    shard = VocabularyShard.of(columns, case["logits"].shape[1], dist.group.WORLD)
    own = padding.clone()[:, rank * columns : (rank + 1) * columns]
    own[:, : shard.valid] = case["logits"][:, shard.start : shard.start + shard.valid]
    own.requires_grad_()
    distribution = Distribution(shard, Sampling(*case["sampling"]))
    log_probs, entropy, outside = token_log_probs(own, case["targets"], distribution)
    total = (case["weights"][0] * log_probs).sum() + (case["weights"][1] * entropy).sum()
    (gradient,) = torch.autograd.grad(total, own)
    return {"log_probs": log_probs.detach(), "entropy": entropy.detach(), "gradient": gradient, "outside": outside}
