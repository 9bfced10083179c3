"""Shares of a batch, and metrics added over micro-batches."""

import pytest
import torch

from megarl.megatron.collect import reduce_metrics
from megarl.megatron.world import Layout


def test_shares_cover_the_batch_once_and_in_order() -> None:
    layouts = [Layout(rank, 3, rank, 3, True, True) for rank in range(3)]
    assert [row for layout in layouts for row in range(12)[layout.rows(12)]] == list(range(12))


def test_a_batch_that_does_not_split_is_refused() -> None:
    with pytest.raises(ValueError, match="5 rows do not split over 2"):
        Layout(0, 2, 0, 2, True, True).rows(5)


def test_metrics_are_added_over_micro_batches() -> None:
    def metric(total: float, count: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        return {"a": (torch.tensor(total), torch.tensor(count))}

    alone = Layout(0, 1, 0, 1, True, True)
    assert reduce_metrics([metric(1.5, 2), metric(-0.5, 3), {}], alone) == {"a": (1.0, 5.0)}
