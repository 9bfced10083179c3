"""Tests of what exists on a GPU alone; without one each says so and is skipped."""

from collections.abc import Iterator

import pytest
import torch

from megarl.config.model import ParallelConfig
from megarl.megatron.world import Layout, join_world, leave_world


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies here, and skips it where there is no CUDA device."""
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    """A trainer of one process, over NCCL."""
    yield join_world(ParallelConfig(), seed=1)
    leave_world()
