"""What the model reads of a micro-batch, and the way back."""

from dataclasses import replace

import pytest
import torch

from megarl.megatron.batch import TrainBatch, pad_batch
from megarl.megatron.model_input import model_input
from megarl.megatron.routing_input import routing_input
from megarl.megatron.world import Layout
from tests.unit.megatron.tiny import random_batch

PROMPTS, RESPONSES = [[5, 6], [7], [8]], [[1], [2, 3, 4], [9]]


@pytest.fixture(autouse=True)
def world(layout: Layout) -> Layout:
    """Megatron-core's groups, of one rank each."""
    return layout


def small(packed_tokens: int | None = None) -> TrainBatch:
    return replace(pad_batch(PROMPTS, RESPONSES, torch.device("cpu")), packed_tokens=packed_tokens)


def test_rows_are_read_as_they_are() -> None:
    batch = small()
    inputs = model_input(batch)
    assert inputs.packed is None and torch.equal(inputs.tokens_bs, batch.tokens_BT)
    assert inputs.positions_bs.tolist() == [[0, 1, 2]] * 3


def test_packed_sequences_lie_end_to_end() -> None:
    inputs = model_input(small(8))
    assert inputs.tokens_bs.tolist() == [[5, 6, 7, 2, 3, 8, 0, 0]]
    assert inputs.positions_bs.tolist() == [[0, 1, 0, 1, 2, 0, 0, 1]]
    assert inputs.packed is not None and inputs.packed.cu_seqlens_q.tolist() == [0, 2, 5, 6, 8]
    assert inputs.packed.max_seqlen_q == 3 and inputs.packed.qkv_format == "thd"
    assert inputs.take(small().targets_BT).tolist() == [6, 1, 2, 3, 4, 9, 0, 0]
    assert not inputs.take(small().mask_BT)[-2:].any()


@pytest.mark.parametrize("packed_tokens", [None, 8])
def test_laying_out_never_waits_for_the_device(packed_tokens: int | None) -> None:
    """Tensors on 'meta' hold nothing: to read one raises an error where a GPU would make the process wait."""
    batch = pad_batch(PROMPTS, RESPONSES, torch.device("meta"))
    inputs = model_input(replace(batch, packed_tokens=packed_tokens))
    assert inputs.tokens_bs.device.type == inputs.positions_bs.device.type == "meta"
    assert inputs.tokens_bs.shape == model_input(small(packed_tokens)).tokens_bs.shape
    assert inputs.take(batch.mask_BT).shape == (inputs.tokens_bs.numel(),)
    routing = routing_input(batch, inputs, sequence_parallel=False)
    assert routing.sequences_N.device.type == "meta" and routing.sequences_N.shape == (inputs.tokens_bs.numel(),)


@pytest.mark.parametrize("packed_tokens", [None, 8])
def test_trained_tokens_are_those_of_the_mask(packed_tokens: int | None) -> None:
    batch = small(packed_tokens)
    inputs = model_input(batch)
    targets_M = inputs.take(batch.targets_BT)[inputs.trained(batch.mask_BT)]
    assert targets_M.tolist() == [token for response in RESPONSES for token in response]


def test_results_come_back_to_their_rows() -> None:
    batch = random_batch(6)
    inputs = model_input(replace(batch, packed_tokens=int(batch.lengths_B.sum()) + 3))
    back_BT = inputs.bring_back(inputs.tokens_bs.float()[0])[0]
    is_token_BT = torch.arange(batch.tokens_BT.shape[1]) < batch.lengths_B[:, None]
    assert torch.equal(back_BT[is_token_BT], batch.tokens_BT[is_token_BT].float())
    assert back_BT[~is_token_BT].isnan().all()


def test_the_gradient_goes_back_to_the_tokens() -> None:
    batch = random_batch(3)
    inputs = model_input(replace(batch, packed_tokens=int(batch.lengths_B.sum()) + 2))
    values_N = torch.zeros(inputs.tokens_bs.numel(), requires_grad=True)
    weights_BT = torch.arange(batch.tokens_BT.numel()).reshape(batch.tokens_BT.shape).float()
    (inputs.bring_back(values_N)[0].nan_to_num(0.0) * weights_BT).sum().backward()  # type: ignore[no-untyped-call]
    assert values_N.grad is not None and torch.equal(values_N.grad, inputs.take(weights_BT))


def test_no_sequence_at_all_is_padding() -> None:
    inputs = model_input(replace(small()[[]], packed_tokens=4))
    assert inputs.tokens_bs.tolist() == [[0, 0, 0, 0]] and inputs.packed is not None
    assert inputs.packed.cu_seqlens_q.tolist() == [0, 4]
    assert [back.shape for back in inputs.bring_back(torch.ones(4), torch.ones(4))] == [(0, 3), (0, 3)]
    assert not inputs.take(small()[[]].mask_BT).any()
