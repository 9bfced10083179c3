"""Parameters, and the bytes that a trained model holds, against published numbers and sums by hand."""

from dataclasses import replace

import pytest

from megarl.plan.parameters import by_part, pieces, whole_model
from megarl.plan.shape import Layout, Numerics, Shape
from megarl.plan.state import State, trained_state
from tests.unit.plan.models import LLAMA_3_8B, QWEN2_5_7B, QWEN2_5_HALF_B, QWEN3_30B_A3B

BF16 = Numerics(compute=2)


@pytest.mark.parametrize(
    ("shape", "published"),
    # half of metadata.total_size, bf16, of each model's model.safetensors.index.json, or of the one file
    [
        (QWEN2_5_7B, 7_615_616_512),
        (QWEN2_5_HALF_B, 494_032_768),
        (QWEN3_30B_A3B, 30_532_122_624),
        (LLAMA_3_8B, 8_030_261_248),
    ],
)
def test_parameters_are_those_of_published_models(shape: Shape, published: int) -> None:
    assert sum(whole_model(shape).values()) == published


@pytest.mark.parametrize("layout", [Layout(8, 2, pipeline=4), Layout(8, 4, pipeline=2), Layout(4, 4)])
def test_ranks_hold_the_model_once(layout: Layout) -> None:
    """Sharded weights add up over tensor ranks and stages; norms are on every tensor rank."""
    whole = whole_model(QWEN2_5_7B)
    held = [by_part(pieces(QWEN2_5_7B, layout, stage)) for stage in range(layout.pipeline)]
    norms = {"attention": 28 * 3584, "mlp": 28 * 3584, "head": 3584}
    for part in ("embedding", "attention", "mlp", "head"):
        again = norms.get(part, 0) * (layout.tensor - 1)
        assert layout.tensor * sum(stage[part] for stage in held) == whole[part] + again


def test_experts_are_spread_over_expert_ranks() -> None:
    layout = Layout(world=16, tensor=2, sequence=True, expert=8, expert_tensor=2)
    expert = sum(piece.elements for piece in pieces(QWEN3_30B_A3B, layout) if piece.expert)
    assert expert == 48 * (128 // 8) * 3 * 2048 * 768 // 2
    assert (layout.replicas, layout.expert_replicas) == (8, 1)


def test_a_tied_weight_is_on_both_ends_of_a_pipeline() -> None:
    layout = Layout(world=4, pipeline=4)
    embedding = 151_936 * 896
    assert by_part(pieces(QWEN2_5_HALF_B, layout, 0))["embedding"] == embedding
    assert by_part(pieces(QWEN2_5_HALF_B, layout, 3))["head"] == embedding + 896
    assert by_part(pieces(QWEN2_5_HALF_B, Layout()))["head"] == 896


def test_stages_may_have_unlike_numbers_of_layers() -> None:
    layout = Layout(world=4, pipeline=4, stage_layers=(5, 8, 8, 7))
    sizes = [by_part(pieces(QWEN2_5_7B, layout, stage))["mlp"] for stage in range(4)]
    assert [size // (3584 * (3 * 18944 + 1)) for size in sizes] == [5, 8, 8, 7]


@pytest.mark.parametrize(
    ("numerics", "distributed", "bytes_a_parameter"),
    [
        # fp32: weight, gradient, two moments
        (Numerics(), False, 4 + 4 + 8),
        (Numerics(), True, 4 + 4 + 8 / 64),
        # bf16 with fp32 gradients, as in Megatron-core's guide to the distributed optimizer: 18, and 6 + 12 / d
        (BF16, False, 2 + 4 + 12),
        (BF16, True, 2 + 4 + 12 / 64),
        # bf16 gradients: the 16 of ZeRO, arXiv:1910.02054, section 3.1, and its 2 + 2 + 12 / d
        (Numerics(compute=2, gradient=2), False, 16),
        (Numerics(compute=2, gradient=2), True, 4 + 12 / 64),
    ],
)
def test_bytes_a_parameter(numerics: Numerics, distributed: bool, bytes_a_parameter: float) -> None:
    layout = Layout(world=64, distributed_optimizer=distributed)
    total = trained_state(QWEN2_5_7B, layout, numerics).total
    # padding adds at most 63 elements to each of 339 tensors
    assert total == pytest.approx(7_615_616_512 * bytes_a_parameter, rel=1e-5)


def test_buffers_of_the_distributed_optimizer_are_padded() -> None:
    """One layer of hand-made sizes: pieces at multiples of 64, the tied weight in a bucket of its own."""
    shape = Shape(layers=1, hidden=10, ffn=3, heads=1, groups=1, head_dim=2, vocab=7)
    # in reverse: norm 10, fc2 30, norm 10, fc1 60, norm 10, bias 6, qkv 60 and proj 20 take 64 each but the last, the
    # bucket ends at 512; the embedding's 70 elements end at 640
    elements = 640
    state = trained_state(shape, Layout(world=2, distributed_optimizer=True), Numerics())
    assert state == State(4 * elements, 4 * elements, 8 * elements // 2)


def test_experts_are_padded_one_by_one() -> None:
    """Three experts of a rank, of 2 x 60 and 60 elements, each tensor at a multiple of 64: 3 x (128 + 64) = 576."""
    shape = Shape(
        layers=1, hidden=20, ffn=3, heads=1, groups=1, head_dim=2, vocab=7, experts=6, experts_per_token=2, expert_ffn=3
    )
    layout = Layout(world=4, expert=2, distributed_optimizer=True)
    state = trained_state(shape, layout, Numerics())
    dense = trained_state(replace(shape, experts=0, ffn=0), replace(layout, expert=1), Numerics())
    # the router's 120 elements take 128 of the dense buffer; each buffer ends at a multiple of 128
    assert state.weights == 4 * (640 + 128) + dense.weights
    assert state.optimizer == 8 * (640 // 2 + 128 // 4) + dense.optimizer


def test_a_critic_has_one_output() -> None:
    policy = trained_state(QWEN2_5_7B, Layout(), Numerics())
    critic = trained_state(QWEN2_5_7B, Layout(), Numerics(), value_head=True)
    assert policy.weights - critic.weights == 4 * (152_064 * 3584 - 3584 - 1)
