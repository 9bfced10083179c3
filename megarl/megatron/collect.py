"""Brings what the last pipeline stage knows to every rank."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from megarl.megatron.world import Layout


def sum_over_speakers(value: Tensor, layout: Layout) -> Tensor:
    """Adds a tensor over the speaking ranks; every rank gets the sum. What the others hold is not read."""
    if layout.world_size == 1:
        return value
    total = value.clone() if layout.speaks else torch.zeros_like(value)
    dist.all_reduce(total)
    return total


def all_rows(own_BT: Tensor | None, rows: list[int], like_BT: Tensor, layout: Layout) -> Tensor:
    """The rows of every data-parallel rank, on every rank, in the batch's order.

    Args:
        own_BT: this rank's rows; read on the speaking ranks only, None elsewhere is fine.
        rows: which rows of the batch those are.
        like_BT: has the result's shape and device.
        layout: where this rank stands.

    Returns:
        fp32 [B, T]. NaN survives: a sum with zeros keeps it.
    """
    full = torch.zeros(like_BT.shape, device=like_BT.device)
    if layout.speaks:
        assert own_BT is not None
        full[rows] = own_BT
    return sum_over_speakers(full, layout)


def reduce_metrics(micro_batches: Sequence[Mapping[str, Tensor]], layout: Layout) -> dict[str, tuple[float, float]]:
    """Adds metrics, each a tensor of its sum and its count, over micro-batches and ranks.

    Returns:
        Name to sum and count, on every rank.
    """
    local: dict[str, tuple[float, float]] = {}
    pairs = [pair for metrics in micro_batches for pair in metrics.items()]
    if layout.speaks and pairs:
        # one copy to the CPU, and so one wait for the device, for all of them
        values = torch.stack([pair for _, pair in pairs]).tolist()
        for (name, _), (total, count) in zip(pairs, values, strict=True):
            _add(local, {name: (total, count)})
    if layout.world_size == 1:
        return local
    gathered: list[dict[str, tuple[float, float]]] = [{} for _ in range(layout.world_size)]
    dist.all_gather_object(gathered, local)
    reduced: dict[str, tuple[float, float]] = {}
    for metrics_of_rank in gathered:
        _add(reduced, metrics_of_rank)
    return reduced


def _add(sums: dict[str, tuple[float, float]], more: Mapping[str, tuple[float, float]]) -> None:
    for name, (total, count) in more.items():
        before = sums.get(name, (0.0, 0.0))
        sums[name] = (before[0] + total, before[1] + count)
