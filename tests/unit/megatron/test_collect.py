"""Shares of a batch, and metrics added over micro-batches."""

import torch

from megarl.megatron.collect import reduce_metrics
from megarl.megatron.world import Layout


def test_metrics_are_added_over_micro_batches() -> None:
    def metric(total: float, count: float, name: str = "a") -> dict[str, torch.Tensor]:
        return {name: torch.tensor([total, count])}

    alone = Layout(0, 1, 0, 1, True, True)
    batches = [metric(1.5, 2), metric(-0.5, 3) | metric(0.25, 1, "b"), {}]
    assert reduce_metrics(batches, alone) == {"a": (1.0, 5.0), "b": (0.25, 1.0)}
    assert reduce_metrics([{}], alone) == {} == reduce_metrics([], alone)
