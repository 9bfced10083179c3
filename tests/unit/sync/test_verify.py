"""From a digest that differs to what happened to the tensor."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from megarl.sync.bucket import TensorSpec
from megarl.sync.digest import digest
from megarl.sync.verify import MismatchError, first_mismatch, likeliest_cause

GENERATOR = torch.Generator().manual_seed(0)
TENSORS = {name: torch.randn(12, 8, generator=GENERATOR) for name in ("first", "second", "third")}
SPECS = [TensorSpec(name, tuple(tensor.shape), tensor.dtype) for name, tensor in TENSORS.items()]
SENT = {name: digest(tensor) for name, tensor in TENSORS.items()}
BEFORE = torch.randn(12, 8, generator=GENERATOR)

ARRIVED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "another tensor": (lambda _: TENSORS["third"], "the engine was given the bytes of third under this name"),
    "transposed": (lambda t: t.T.contiguous(), "it was transposed on the way"),
    "transposed under its own shape": (lambda t: t.T.reshape(12, 8), "it was transposed on the way"),
    "dtype": (lambda t: t.bfloat16(), "it was sent as torch.bfloat16 where the trainer has torch.float32"),
    "rounded": (lambda t: t.half().float(), "it was rounded to torch.float16 on the way"),
    "rows": (lambda t: t[6:], "part 1 of 2 along dimension 0 came, a shard and not the whole"),
    "columns": (lambda t: t[:, 2:4], "part 1 of 4 along dimension 1 came, a shard and not the whole"),
    "zeros": (torch.zeros_like, "its bytes were never written: all are zero"),
    "stale": (lambda _: BEFORE, "these are its bytes of an earlier version: a stale tensor"),
    "something": (lambda t: t + 1, "its bytes are those of no other tensor, no part, no transpose and no dtype of it"),
}


@pytest.mark.parametrize("case", ARRIVED)
def test_the_cause(case: str) -> None:
    change, wanted = ARRIVED[case]
    received = SENT | {"second": digest(change(TENSORS["second"]))}
    mismatch = first_mismatch(SPECS, SENT, received)
    assert mismatch is not None and mismatch.name == "second"
    read: list[str] = []

    def gathered() -> object:
        for name, tensor in TENSORS.items():
            read.append(name)
            yield name, tensor

    cause = likeliest_cause(mismatch, gathered(), {"second": digest(BEFORE)})  # type: ignore[arg-type]
    assert cause == wanted
    # other ranks wait for the main one to take all
    assert read == list(TENSORS)
    assert mismatch.sentence(cause).startswith("second did not arrive as it was sent: digest ")


def test_a_tensor_that_never_came() -> None:
    mismatch = first_mismatch(SPECS, SENT, {name: SENT[name] for name in ("first", "third")})
    assert isinstance(mismatch, MismatchError) and mismatch.received is None
    assert likeliest_cause(mismatch, TENSORS.items(), {}) == "it was not sent, or under another name"


def test_only_what_was_compared_is_missed() -> None:
    assert first_mismatch(SPECS, {"first": SENT["first"]}, {"first": SENT["first"]}) is None
    assert first_mismatch(SPECS, SENT, SENT) is None
