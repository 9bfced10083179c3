"""Shares of a batch, and metrics added over micro-batches."""

import torch

from megarl.megatron.collect import reduce_metrics
from megarl.megatron.world import Layout


def test_metrics_are_added_over_micro_batches() -> None:
    def metric(total: float, count: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        return {"a": (torch.tensor(total), torch.tensor(count))}

    alone = Layout(0, 1, 0, 1, True, True)
    assert reduce_metrics([metric(1.5, 2), metric(-0.5, 3), {}], alone) == {"a": (1.0, 5.0)}
