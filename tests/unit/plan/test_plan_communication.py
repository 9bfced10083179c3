"""Bytes sent against sums by hand."""

from dataclasses import replace

import pytest

from megarl.plan.communication import data_bytes, step_bytes
from megarl.plan.shape import Layout, Numerics
from tests.unit.plan.models import BATCH, QWEN2_5_7B, QWEN2_5_HALF_B, QWEN3_30B_A3B

BF16 = Numerics(compute=2)
HIDDEN = 4096 * 3584 * 2
"""Of a micro-batch, bf16; half of its tokens are trained."""
LOG_PROBS = 2 * 2048 * 16


def test_one_rank_sends_nothing() -> None:
    assert not any(step_bytes(QWEN2_5_7B, Layout(), BF16, BATCH).values())


@pytest.mark.parametrize(("recompute", "halves"), [("none", 8), ("full", 12)])
def test_tensor_parallelism_adds_up_four_times_a_layer(recompute: str, halves: int) -> None:
    """Two all-reduces each way, of 2 (t - 1) / t times the hidden states; one of all and one of the trained tokens."""
    numerics = replace(BF16, recompute=recompute)
    sent = step_bytes(QWEN2_5_7B, Layout(world=4, tensor=4), numerics, BATCH)
    assert sent["tensor"] == 16 * ((28 * halves + 2) * HIDDEN + HIDDEN + LOG_PROBS) * 3 // 4


def test_sequence_parallelism_gathers_kept_inputs_again() -> None:
    sent = step_bytes(QWEN2_5_7B, Layout(world=4, tensor=4, sequence=True), BF16, BATCH)
    assert sent["tensor"] == 16 * ((28 * 10 + 4) * HIDDEN + LOG_PROBS) * 3 // 4


@pytest.mark.parametrize(("virtual", "stage", "passes"), [(1, 0, 1), (1, 1, 2), (1, 3, 1), (2, 0, 3), (2, 1, 4)])
def test_pipeline(virtual: int, stage: int, passes: int) -> None:
    layout = Layout(world=4, pipeline=4, virtual=virtual)
    assert step_bytes(QWEN2_5_7B, layout, BF16, BATCH, stage)["pipeline"] == 16 * passes * HIDDEN


def test_context_parallelism_gathers_keys_and_values() -> None:
    sent = step_bytes(QWEN2_5_7B, Layout(world=2, context=2), BF16, BATCH)
    assert sent["context"] == 16 * 28 * 2 * (4096 * 2 * 4 * 128 * 2) // 2


@pytest.mark.parametrize(("distributed", "a_parameter"), [(False, 2 * 4), (True, 4 + 2)])
def test_data_parallelism(distributed: bool, a_parameter: int) -> None:
    """fp32 gradients are all-reduced; or scattered, and bf16 weights gathered."""
    layout = Layout(world=8, distributed_optimizer=distributed)
    assert data_bytes(QWEN2_5_7B, layout, BF16) == 7_615_616_512 * a_parameter * 7 // 8


def test_context_ranks_add_their_gradients_up_too() -> None:
    assert data_bytes(QWEN2_5_7B, Layout(world=8, context=4), BF16) == data_bytes(QWEN2_5_7B, Layout(world=8), BF16)


def test_experts_go_and_come_each_way() -> None:
    sent = step_bytes(QWEN3_30B_A3B, Layout(world=8, expert=8), BF16, BATCH)
    assert sent["expert"] == 16 * 48 * 4 * (8 * 4096 * 2048 * 2) * 7 // 8


def test_a_tied_weight_of_two_stages_is_added_up() -> None:
    layout = Layout(world=4, pipeline=4)
    sent = [step_bytes(QWEN2_5_HALF_B, layout, BF16, BATCH, stage)["shared embedding"] for stage in range(4)]
    assert sent == [151_936 * 896 * 4, 0, 0, 151_936 * 896 * 4]
