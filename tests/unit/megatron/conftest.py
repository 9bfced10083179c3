"""A trainer of one process, and the two ways to work through a chunk's logits."""

from collections.abc import Iterator

import pytest
import torch

from megarl.config.model import ParallelConfig
from megarl.megatron import chunk_logits
from megarl.megatron.world import Layout, join_world, leave_world
from tests.triton_here import interprets_kernels


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    """Joins a world of one and leaves it after the module's tests."""
    yield join_world(ParallelConfig(), seed=1)
    leave_world()


@pytest.fixture(params=["torch", pytest.param("kernels", marks=interprets_kernels)])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Torch's operations, then Triton's kernels in blocks so small that a row has several."""
    if request.param == "kernels":
        from megarl.platform.cuda import softmax

        monkeypatch.setattr(chunk_logits, "takes_kernels", lambda logits: logits.dtype != torch.float64)
        monkeypatch.setattr(softmax, "BLOCK", 8)
    return str(request.param)
