"""The workers' mapping of the trainer's buckets."""

import pytest
import torch

from megarl.sync.bucket import Bucket, TensorSpec
from megarl.sync.shared_memory import SharedMemoryReader, SharedMemorySender

BUCKET = Bucket.of([TensorSpec("a", (3, 5), torch.float32), TensorSpec("b", (7,), torch.bfloat16)])


def test_a_kept_mapping_shows_the_next_bucket() -> None:
    sender, reader = SharedMemorySender(), SharedMemoryReader()
    for number in range(4):
        tensors = torch.full((3, 5), float(number)), torch.full((7,), -float(number), dtype=torch.bfloat16)
        with reader.read(sender.write(number % 2, BUCKET, tensors)) as got:
            assert torch.equal(got["a"], tensors[0]) and torch.equal(got["b"], tensors[1])
    large = Bucket.of([TensorSpec("c", (100_000,), torch.float32)])
    for slot in (0, 1, 0):
        with reader.read(sender.write(slot, large, [torch.arange(100_000.0)])) as got:
            assert torch.equal(got["c"], torch.arange(100_000.0))
    sender.close()


def test_a_tensor_that_is_still_held_is_found() -> None:
    sender, reader = SharedMemorySender(), SharedMemoryReader()
    where = sender.write(0, BUCKET, (torch.zeros(3, 5), torch.zeros(7)))
    with pytest.raises(BufferError), reader.read(where) as got:
        held = got["a"][1:]
    assert held.shape == (2, 5)
    sender.close()
