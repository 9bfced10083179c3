"""Buckets from a GPU to workers: by CUDA IPC on the same one, by NCCL on another."""

from collections.abc import Iterator

import pytest
import torch

from megarl.sync.broadcast import BroadcastSender
from megarl.sync.bucket import Bucket, TensorSpec
from megarl.sync.cuda_ipc import CudaIpcSender
from megarl.sync.delta import DeltaSender
from megarl.sync.digest import digest
from megarl.sync.transport import Sender
from tests.parallel.sync_reader import ReadersWithoutEngine

SHAPES = ((1000, 33), (7,), ())


@pytest.fixture
def engine() -> Iterator[ReadersWithoutEngine]:
    engine = ReadersWithoutEngine()
    yield engine
    engine.close()


def push_thrice(sender: Sender, engine: ReadersWithoutEngine) -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    tensors = {
        f"{shape} {dtype}": torch.randn(shape, generator=generator, device="cuda").to(dtype)
        for shape in SHAPES
        for dtype in (torch.float32, torch.bfloat16)
    }
    bucket = Bucket.of([TensorSpec(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()])
    for number in range(3):
        for tensor in tensors.values():
            tensor.view(-1)[0] += number
        engine.begin_update(sender.describe())
        engine.receive(sender.write(number % 2, bucket, tensors.values()))
        assert engine.received_digests() == [{name: digest(tensor) for name, tensor in tensors.items()}]
    sender.close()


@pytest.mark.parametrize("delta", [False, True])
def test_memory_of_the_gpu_is_read_by_another_process(engine: ReadersWithoutEngine, delta: bool) -> None:
    push_thrice(DeltaSender(CudaIpcSender()) if delta else CudaIpcSender(), engine)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL joins no two processes on one GPU, and there is one")
@pytest.mark.parametrize("delta", [False, True])
def test_nccl_reaches_a_worker_on_another_gpu(engine: ReadersWithoutEngine, delta: bool) -> None:
    sender = BroadcastSender(engine.workers, lambda: engine.lost, timeout_s=60)
    push_thrice(DeltaSender(sender) if delta else sender, engine)
