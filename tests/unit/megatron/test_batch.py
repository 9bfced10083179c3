"""Ragged responses as padded tensors."""

import math

import pytest
import torch

from megarl.megatron.batch import on_targets, pad_batch

CPU = torch.device("cpu")
PROMPTS, RESPONSES = [[5, 6], [7]], [[1], [2, 3, 4]]


def test_position_t_predicts_token_t_plus_one() -> None:
    batch = pad_batch(PROMPTS, RESPONSES, CPU)
    assert batch.tokens_BT.tolist() == [[5, 6, 1], [7, 2, 3]]
    assert batch.targets_BT.tolist() == [[6, 1, 0], [2, 3, 4]]
    assert batch.mask_BT.tolist() == [[False, True, False], [True, True, True]]


def test_mask_selects_exactly_the_responses() -> None:
    batch = pad_batch(PROMPTS, RESPONSES, CPU)
    assert batch.targets_BT[batch.mask_BT].tolist() == [token for response in RESPONSES for token in response]


def test_values_of_the_responses_land_on_their_targets() -> None:
    batch = pad_batch(PROMPTS, RESPONSES, CPU)
    values = on_targets(batch, [[-0.5], [-1.0, math.nan, -3.0]])
    assert values.dtype == torch.float32
    wanted = torch.tensor([[math.nan, -0.5, math.nan], [-1.0, math.nan, -3.0]])
    torch.testing.assert_close(values, wanted, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[-0.5], [-1.0]], "response 1 has 3 tokens, and 1 values came"),
        # as many in all as there are tokens
        ([[-0.5, -0.6], [-1.0, -2.0]], "response 0 has 1 tokens, and 2 values came"),
        ([[-0.5]], "longer"),
    ],
)
def test_values_must_be_one_a_token(values: list[list[float | None]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        on_targets(pad_batch(PROMPTS, RESPONSES, CPU), values)


def test_a_value_that_is_missing_is_nan() -> None:
    values = on_targets(pad_batch(PROMPTS, RESPONSES, CPU), [[None], [-1.0, None, -math.inf]])
    wanted = torch.tensor([[math.nan] * 3, [-1.0, math.nan, -math.inf]])
    torch.testing.assert_close(values, wanted, rtol=0.0, atol=0.0, equal_nan=True)


def test_responses_without_tokens() -> None:
    batch = pad_batch([[5], [7]], [[], []], CPU)
    assert batch.tokens_BT.shape == batch.mask_BT.shape == (2, 1), "a model must have a token to read"
    assert batch.tokens_BT.tolist() == [[5], [7]] and not batch.mask_BT.any()
    assert on_targets(batch, [[], []]).isnan().all()
    mixed = pad_batch([[5, 6], [7]], [[], [2, 3]], CPU)
    assert mixed.mask_BT.tolist() == [[False, False], [True, True]]


def test_slices_take_every_tensor_along() -> None:
    batch = pad_batch(PROMPTS, RESPONSES, CPU)
    parts = list(batch.parts(2))
    assert [len(part) for part in parts] == [1, 1]
    assert torch.equal(torch.cat([part.tokens_BT for part in parts]), batch.tokens_BT)
    assert parts[1].mask_BT.tolist() == [[True, True, True]] and parts[1].advantages_BT is None
    turned = batch[[1, 0]]
    assert torch.equal(turned.targets_BT, batch.targets_BT.flip(0)) and turned.lengths_B.tolist() == [3, 2]


def test_every_prompt_needs_a_response() -> None:
    with pytest.raises(ValueError):
        pad_batch([[1], [2]], [[3]], CPU)
