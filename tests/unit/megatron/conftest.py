"""A trainer of one process."""

from collections.abc import Iterator

import pytest

from megarl.config.model import ParallelConfig
from megarl.megatron.world import Layout, join_world, leave_world


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    """Joins a world of one and leaves it after the module's tests."""
    yield join_world(ParallelConfig(), seed=1)
    leave_world()
