"""CoreAttention on one rank against the formula in float64."""

from typing import Any

import pytest
import torch

from megarl.platform import install

install()

from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.transformer.enums import AttnMaskType  # noqa: E402

from megarl.platform.layers.attention import CoreAttention  # noqa: E402
from megarl.platform.layers.zigzag import natural_order, query_positions  # noqa: E402
from tests.unit.platform.reference import plain_attention, random_qkv, tiny_config  # noqa: E402

pytestmark = pytest.mark.usefixtures("world_of_one")


def attention(**overrides: Any) -> CoreAttention:
    return CoreAttention(tiny_config(**overrides), 1, AttnMaskType.causal, "self")


def packed_sequences(*bounds: int) -> PackedSeqParams:
    cumulative = torch.tensor(bounds, dtype=torch.int32)
    longest = int(cumulative.diff().max())
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=cumulative,
        cu_seqlens_kv=cumulative,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )


def assert_same_with_gradients(ours: torch.Tensor, reference: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> None:
    """Compares the outputs, and the gradients of a random projection of them."""
    torch.testing.assert_close(ours.double(), reference, rtol=0, atol=2e-6)
    direction = torch.randn(reference.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    found = torch.autograd.grad((ours.double() * direction).sum(), leaves)
    expected = torch.autograd.grad((reference * direction).sum(), leaves)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_causal_with_grouped_queries(groups: int) -> None:
    qkv = random_qkv(tokens=11, batch=3, heads=4, groups=groups, seed=groups)
    assert_same_with_gradients(attention()(*qkv, None), plain_attention(*qkv, bounds=[0, 11]), qkv)


def test_no_mask_sees_everything() -> None:
    qkv = random_qkv(tokens=7, batch=2, heads=4, groups=2, seed=5)
    output = attention()(*qkv, None, attn_mask_type=AttnMaskType.no_mask)
    assert_same_with_gradients(output, plain_attention(*qkv, bounds=[0, 7], causal=False), qkv)


@pytest.mark.parametrize("bounds", [(0, 12), (0, 3, 4, 12), (0, 5, 5, 12)])
def test_packed_sequences_do_not_see_each_other(bounds: tuple[int, ...]) -> None:
    qkv = random_qkv(tokens=12, batch=1, heads=4, groups=2, seed=6)
    query, key, value = (x.squeeze(1) for x in qkv)
    output = attention()(query, key, value, None, packed_seq_params=packed_sequences(*bounds))
    assert output.shape == (12, 32)
    assert_same_with_gradients(output, plain_attention(*qkv, bounds=bounds).squeeze(1), qkv)


def test_tokens_after_the_last_packed_sequence_are_apart() -> None:
    qkv = random_qkv(tokens=12, batch=1, heads=4, groups=2, seed=7)
    query, key, value = (x.squeeze(1) for x in qkv)
    output = attention()(query, key, value, None, packed_seq_params=packed_sequences(0, 4, 9))
    assert_same_with_gradients(output, plain_attention(*qkv, bounds=(0, 4, 9, 12)).squeeze(1), qkv)


def test_padded_bounds_give_the_layout() -> None:
    qkv = random_qkv(tokens=12, batch=1, heads=4, groups=2, seed=8)
    query, key, value = (x.squeeze(1) for x in qkv)
    sequences = packed_sequences(0, 3, 7)
    sequences.cu_seqlens_q_padded = sequences.cu_seqlens_kv_padded = torch.tensor([0, 6, 12], dtype=torch.int32)
    output = attention()(query, key, value, None, packed_seq_params=sequences)
    assert_same_with_gradients(output, plain_attention(*qkv, bounds=(0, 6, 12)).squeeze(1), qkv)


@pytest.mark.parametrize("new", [1, 3])
def test_last_queries_see_the_whole_cache(new: int) -> None:
    query, key, value = random_qkv(tokens=9, batch=2, heads=4, groups=2, seed=10)
    output = attention()(query[-new:], key, value, None)
    reference = plain_attention(query, key, value, bounds=[0, 9])[-new:]
    torch.testing.assert_close(output.double(), reference, rtol=0, atol=2e-6)


def test_softmax_scale_is_obeyed() -> None:
    query, key, value = random_qkv(tokens=6, batch=1, heads=4, groups=4, seed=11)
    scaled = CoreAttention(tiny_config(), 1, AttnMaskType.causal, "self", softmax_scale=0.5)
    reference = plain_attention(query * 0.5 * 8**0.5, key, value, bounds=[0, 6])
    torch.testing.assert_close(scaled(query, key, value, None).double(), reference, rtol=0, atol=2e-6)


def test_dropout_acts_in_training_only() -> None:
    qkv = random_qkv(tokens=16, batch=2, heads=4, groups=2, seed=12)
    module = attention(attention_dropout=0.5)
    reference = plain_attention(*qkv, bounds=[0, 16])
    torch.testing.assert_close(module.eval()(*qkv, None).double(), reference, rtol=0, atol=2e-6)
    assert (module.train()(*qkv, None).double() - reference).abs().max() > 0.1


@pytest.mark.parametrize(
    "arguments",
    [{"attention_bias": torch.zeros(1)}, {"attn_mask_type": AttnMaskType.arbitrary}],
    ids=["bias", "arbitrary"],
)
def test_unsupported_masks_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="causal masks or none"):
        attention()(*random_qkv(4, 1, 4, 2, seed=1), None, **arguments)


def test_packed_keys_of_another_length_are_refused() -> None:
    query, key, value = (x.squeeze(1) for x in random_qkv(6, 1, 4, 2, seed=1))
    with pytest.raises(ValueError, match="not 6 to 3"):
        attention()(query[:3], key, value, None, packed_seq_params=packed_sequences(0, 3))


def test_sliding_window_is_refused() -> None:
    with pytest.raises(ValueError, match="window_size"):
        attention(window_size=(4, 0))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_zigzag_covers_each_position_once(ranks: int) -> None:
    length = 12 * ranks
    held = [query_positions(length, ranks, rank) for rank in range(ranks)]
    assert torch.equal(torch.cat(held).sort().values, torch.arange(length))
    assert torch.equal(natural_order(torch.stack(held), slice(0, 12)), torch.arange(length))


def test_zigzag_is_megatrons() -> None:
    # Rank r of C holds the chunks r and 2C-1-r.
    assert query_positions(8, 2, 0).tolist() == [0, 1, 6, 7]
    assert query_positions(8, 2, 1).tolist() == [2, 3, 4, 5]


def test_zigzag_refuses_what_does_not_divide() -> None:
    with pytest.raises(ValueError, match="10 tokens does not divide by 4"):
        query_positions(10, 2, 0)
