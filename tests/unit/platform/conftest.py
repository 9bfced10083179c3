"""A world of one process for the tests that build Megatron's modules."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from megarl.platform import install


@pytest.fixture(scope="module")
def world_of_one() -> Iterator[None]:
    """Megatron's parallel state and random-state tracker over a single rank."""
    install()
    from megatron.core import parallel_state, tensor_parallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1, force_reset_rng=True)
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
