"""Only what changed travels, and every bit of it arrives."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from megarl.sync.bucket import Bucket, TensorSpec
from megarl.sync.delta import DeltaReader, DeltaSender
from megarl.sync.disk import DiskReader, DiskSender
from megarl.sync.shared_memory import SharedMemoryReader, SharedMemorySender

SIZE = 1200


class Counting(SharedMemorySender):
    """Shared memory that notes the bytes of each bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def write(self, slot: int, bucket: Bucket, tensors: Iterable[Tensor]) -> dict[str, object]:
        self.sizes.append(sum(spec.nbytes for spec in bucket.specs))
        return super().write(slot, bucket, tensors)


def pushed(sender: DeltaSender, reader: DeltaReader, *tensors: Tensor) -> list[Tensor]:
    bucket = Bucket.of([TensorSpec(f"t{index}", tuple(t.shape), t.dtype) for index, t in enumerate(tensors)])
    with reader.read(sender.write(0, bucket, tensors)) as got:
        return [tensor.clone() for tensor in got.values()]


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))


@pytest.fixture
def pair() -> tuple[Counting, DeltaSender, DeltaReader]:
    inner = Counting()
    return inner, DeltaSender(inner), DeltaReader(SharedMemoryReader())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_signs_of_zero_and_payloads_of_nan_arrive(
    pair: tuple[Counting, DeltaSender, DeltaReader], dtype: torch.dtype
) -> None:
    inner, sender, reader = pair
    tensor = torch.zeros(SIZE).to(dtype)
    pushed(sender, reader, tensor)
    changed = tensor.clone()
    changed.view(torch.uint8)[dtype.itemsize - 1] = 0x80
    # two NaNs that differ in their payload alone, one after the other
    for payload in (0x7F, 0xFF):
        changed.view(torch.uint8)[-dtype.itemsize :] = payload
        assert same_bits(pushed(sender, reader, changed)[0], changed)
    assert inner.sizes == [tensor.nbytes, 2 * (4 + dtype.itemsize), 4 + dtype.itemsize]


def test_a_bf16_step_of_training_travels_in_a_part_of_its_bytes(
    pair: tuple[Counting, DeltaSender, DeltaReader],
) -> None:
    inner, sender, reader = pair
    main = torch.randn(SIZE, generator=torch.Generator().manual_seed(1)) * 0.02
    pushed(sender, reader, main.bfloat16())
    # Adam moves a weight by about the learning rate, and bf16's steps are 1 / 256 of it: few round to another value
    after = (main + 1e-6).bfloat16()
    assert same_bits(pushed(sender, reader, after)[0], after)
    share = float((after != main.bfloat16()).float().mean())
    assert inner.sizes[1] == pytest.approx(share * SIZE * 6) and share < 0.25


@pytest.mark.parametrize(("dtype", "breaks_even"), [(torch.float32, 600), (torch.bfloat16, 400)])
def test_past_the_break_even_share_the_whole_travels(
    pair: tuple[Counting, DeltaSender, DeltaReader], dtype: torch.dtype, breaks_even: int
) -> None:
    inner, sender, reader = pair
    tensor = torch.zeros(SIZE, dtype=dtype)
    pushed(sender, reader, tensor)
    for count in (breaks_even - 1, breaks_even):
        tensor[:count] += 1
        assert same_bits(pushed(sender, reader, tensor)[0], tensor)
    assert inner.sizes[1:] == [(breaks_even - 1) * (4 + dtype.itemsize), tensor.nbytes]


def test_a_new_worker_gets_the_whole(pair: tuple[Counting, DeltaSender, DeltaReader]) -> None:
    inner, sender, reader = pair
    tensor = torch.arange(SIZE)
    pushed(sender, reader, tensor)
    sender.reset()
    assert same_bits(pushed(sender, DeltaReader(SharedMemoryReader()), tensor)[0], tensor)
    assert inner.sizes == [tensor.nbytes] * 2


def test_changes_to_another_state_are_refused(pair: tuple[Counting, DeltaSender, DeltaReader]) -> None:
    _, sender, reader = pair
    tensor = torch.arange(SIZE)
    pushed(sender, reader, tensor)
    with pytest.raises(RuntimeError, match="after bucket 1, the last here is None"):
        pushed(sender, DeltaReader(SharedMemoryReader()), tensor)


def test_it_goes_through_a_folder_too(tmp_path: Path) -> None:
    sender, reader = DeltaSender(DiskSender(tmp_path / "sync")), DeltaReader(DiskReader())
    tensors = [torch.randn(5, 7), torch.tensor(3.0), torch.zeros(0, 4)]
    pushed(sender, reader, *tensors)
    tensors[0][2, 3] = 1.0
    assert all(map(same_bits, pushed(sender, reader, *tensors), tensors))
    assert all(map(same_bits, pushed(sender, reader, *tensors), tensors))
