"""Activations, the logits and the engine's cache against sums by hand and published formulas."""

from dataclasses import replace

import pytest

from megarl.plan.activations import (
    head_bytes,
    in_flight,
    layer_bytes,
    logits_bytes,
    recomputed_bytes,
    stage_bytes,
    whole_logits,
)
from megarl.plan.memory import Beside, Engine, cache_bytes, stage_memory
from megarl.plan.shape import Layout, Numerics
from tests.unit.plan.models import BATCH, QWEN2_5_7B, QWEN3_30B_A3B

TE_BF16 = Numerics(compute=2, fused_norm=True)


def test_whole_logits_are_the_documents_62_5_gb() -> None:
    """32 x 2048 tokens, 128,000 words, fp32, the logits and their gradient: 62.5 GB, in units of 1024^3 bytes."""
    assert whole_logits(32, 2048, 128_000) / 1024**3 == 62.5


def test_a_layer_by_hand() -> None:
    """bf16 under Transformer Engine: every tensor of a layer, tp 1."""
    tokens, hidden, ffn, query, key = 4096, 3584, 18944, 28 * 128, 4 * 128
    norms = 2 * (2 * hidden * 2 + 4)
    attention = 2 * (2 * query + key + (query + 2 * key)) + 4 * 28
    rotary = 4 * 128 * 2
    assert layer_bytes(QWEN2_5_7B, Layout(), TE_BF16, BATCH) == tokens * (norms + attention + rotary + 5 * ffn * 2)


def test_sequence_parallelism_shares_what_tensor_parallelism_does_not() -> None:
    """Norms and their outputs, the 10 of the 34 of arXiv:2205.05198, equations 2 and 4, are not split without it."""
    split = Layout(world=4, tensor=4)
    difference = layer_bytes(QWEN2_5_7B, split, TE_BF16, BATCH)
    difference -= layer_bytes(QWEN2_5_7B, replace(split, sequence=True), TE_BF16, BATCH)
    assert difference == 4096 * 2 * (2 * 3584 * 2 + 4) * 3 // 4


def test_full_recomputation_keeps_inputs() -> None:
    numerics = replace(TE_BF16, recompute="full", recompute_layers=2)
    layout = Layout(world=2, pipeline=2)
    assert stage_bytes(QWEN2_5_7B, layout, numerics, BATCH, 1) == 7 * 4096 * 3584 * 2
    pair = 2 * layer_bytes(QWEN2_5_7B, layout, TE_BF16, BATCH)
    assert recomputed_bytes(QWEN2_5_7B, layout, numerics, BATCH, 1) == pair - 4096 * 3584 * 2 + 4096 * 128 * 4
    memory = stage_memory(QWEN2_5_7B, layout, numerics, BATCH, Beside(), 1)
    assert memory.training_peak == memory.training["activations"] + max(
        memory.training["recomputed"], memory.training["head"] + memory.training["logits"]
    )


@pytest.mark.parametrize(("virtual", "stage", "share"), [(1, 0, 4), (1, 3, 1), (2, 0, 4 * (1 + 3 / 8)), (2, 3, 5 / 2)])
def test_micro_batches_under_way(virtual: int, stage: int, share: float) -> None:
    """1F1B has p - s; an interleaved pipeline's first stage 1 + (p - 1) / (p v) times as much (arXiv:2205.05198)."""
    layout = Layout(world=4, pipeline=4, virtual=virtual)
    one = stage_bytes(QWEN2_5_7B, layout, TE_BF16, BATCH, stage)
    assert in_flight(QWEN2_5_7B, layout, TE_BF16, BATCH, stage) == one * share
    few = replace(BATCH, count=1)
    assert in_flight(QWEN2_5_7B, layout, TE_BF16, few, stage) == one


def test_experts_by_hand() -> None:
    """Eight copies of each token, in and out and through 768 channels; under expert tensor parallelism twice as many,
    of half the channels."""
    dense = layer_bytes(replace(QWEN3_30B_A3B, ffn=0), Layout(), TE_BF16, BATCH)
    routed = layer_bytes(QWEN3_30B_A3B, Layout(), TE_BF16, BATCH, experts=True) - dense
    assert routed == 4096 * (2 * 128 * 4 + 8 * (2 * 2048 + 5 * 768) * 2)
    layout = Layout(world=2, tensor=2, sequence=True, expert_tensor=2)
    dense = layer_bytes(replace(QWEN3_30B_A3B, ffn=0), layout, TE_BF16, BATCH)
    routed = layer_bytes(QWEN3_30B_A3B, layout, TE_BF16, BATCH, experts=True) - dense
    assert routed == 2048 * (2 * 128 * 4 + 16 * (2 * 2048 + 5 * 384) * 2)


def test_the_head_holds_no_whole_logits() -> None:
    """The larger of 128 MiB twice and of 1,024 tokens' logits; the weight's gradient in fp32 and bf16."""
    layout = Layout(world=2, tensor=2)
    assert logits_bytes(QWEN2_5_7B, layout, TE_BF16, BATCH) == 4096 * 3584 * 2 + 1024 * 152_064 // 2 * 4
    eight = Layout(world=8, tensor=8)
    assert logits_bytes(QWEN2_5_7B, eight, TE_BF16, BATCH) == 4096 * 3584 * 2 + 2 * 128 * 2**20
    norm = 4096 * (2 * 3584 + 4)
    assert head_bytes(QWEN2_5_7B, layout, TE_BF16, BATCH) == norm + 2048 * 3584 * 2 + 152_064 // 2 * 3584 * 6


def test_the_cache_by_hand() -> None:
    """Qwen2.5-7B in bf16 takes 56 KiB a token."""
    engine = Engine(rows=256, tokens=4096, prompt=1024, number=2)
    assert cache_bytes(QWEN2_5_7B, engine) == 256 * 4096 * 56 * 1024
