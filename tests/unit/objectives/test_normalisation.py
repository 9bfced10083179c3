"""Weights of tokens: what they sum to, what they mean, and that no split of the batch changes the loss."""

import math

import pytest
import torch

from megarl.objectives.normalisation import MODES, Normalisation, weighted_sum
from tests.unit.objectives.reference import ragged_mask, uniform

ROWS, WIDTH = 8, 6
MASK = ragged_mask(ROWS, WIDTH, 3)
TOKENS, RESPONSES = int(MASK.sum()), int(MASK.any(1).sum())
CONSTANT = 5


def normalisation(mode: str) -> Normalisation:
    return Normalisation(mode, CONSTANT if mode == "seq_mean_token_sum_norm" else None)


def token_weights(mask: torch.Tensor, mode: str, tokens: int, responses: int) -> torch.Tensor:
    return normalisation(mode).weights(mask, tokens, responses)


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean"])
def test_means_have_weights_that_sum_to_the_tokens(mode: str) -> None:
    weights = token_weights(MASK, mode, TOKENS, RESPONSES)
    assert weights.dtype == torch.float32
    assert weights.double().sum().item() == pytest.approx(TOKENS, rel=1e-6)
    assert (weights[~MASK] == 0).all() and (weights[MASK] > 0).all()


def test_modes_are_the_means_that_they_name() -> None:
    loss = uniform(-1, 1, (ROWS, WIDTH), 1).float()
    per_token = [loss[i, j].item() for i, j in MASK.nonzero().tolist()]
    responses = [loss[row][MASK[row]].tolist() for row in range(ROWS) if MASK[row].any()]
    assert len(responses) < ROWS
    wanted = {
        "token_mean": sum(per_token) / len(per_token),
        "seq_mean_token_mean": sum(sum(r) / len(r) for r in responses) / len(responses),
        "seq_mean_token_sum": sum(map(sum, responses)) / len(responses),
        "seq_mean_token_sum_norm": sum(map(sum, responses)) / len(responses) / CONSTANT,
    }
    assert tuple(wanted) == MODES
    for mode, value in wanted.items():
        total = weighted_sum(loss, token_weights(MASK, mode, TOKENS, RESPONSES))
        assert total.item() / TOKENS == pytest.approx(value, rel=1e-5), mode


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [(1,) * 8, (2,) * 4, (8,), (3, 5), (1, 6, 1)])
def test_any_split_gives_the_same_loss_and_gradient(mode: str, sizes: tuple[int, ...]) -> None:
    loss = uniform(-1, 1, (ROWS, WIDTH), 2).float().requires_grad_()
    whole = weighted_sum(loss, token_weights(MASK, mode, TOKENS, RESPONSES))
    pairs = zip(loss.split(sizes), MASK.split(sizes), strict=True)
    parts = sum(weighted_sum(part, token_weights(mask, mode, TOKENS, RESPONSES)) for part, mask in pairs)
    assert isinstance(parts, torch.Tensor)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)
    gradients = [torch.autograd.grad(total, loss)[0] for total in (whole, parts)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("junk", [math.nan, math.inf])
def test_what_a_hidden_token_holds_is_not_read(mode: str, junk: float) -> None:
    loss = uniform(-1, 1, (ROWS, WIDTH), 4).float()
    weights = token_weights(MASK, mode, TOKENS, RESPONSES)
    spoilt = loss.masked_fill(~MASK, junk).requires_grad_()
    total = weighted_sum(spoilt, weights)
    assert torch.equal(total.detach(), weighted_sum(loss, weights))
    assert torch.equal(torch.autograd.grad(total, spoilt)[0], weights)


@pytest.mark.parametrize("mode", MODES)
def test_no_trained_token_is_a_loss_of_zero(mode: str) -> None:
    weights = token_weights(torch.zeros(2, 3, dtype=torch.bool), mode, 0, 0)
    assert weighted_sum(torch.full((2, 3), math.nan), weights).item() == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_dropped_by_rejection_leaves_the_others_weights(mode: str) -> None:
    loss = uniform(-1, 1, (ROWS, WIDTH), 5).float()
    weights = token_weights(MASK, mode, TOKENS, RESPONSES)
    rejected = loss.clone()
    rejected[1] = 0.0
    dropped = weighted_sum(loss[1:2], weights[1:2])
    torch.testing.assert_close(weighted_sum(rejected, weights) + dropped, weighted_sum(loss, weights))


@pytest.mark.parametrize("mode", MODES)
def test_one_token_is_its_own_mean(mode: str) -> None:
    mask = torch.tensor([[False, True], [False, False]])
    total = weighted_sum(torch.full((2, 2), 3.0), token_weights(mask, mode, 1, 1))
    assert total.item() == pytest.approx(3.0 / (CONSTANT if mode == "seq_mean_token_sum_norm" else 1))


@pytest.mark.parametrize(
    ("mode", "constant"), [("sum_of_squares", None), ("seq_mean_token_sum_norm", None), ("token_mean", 5)]
)
def test_modes_that_make_no_sense_are_refused(mode: str, constant: int | None) -> None:
    with pytest.raises(ValueError, match=mode):
        Normalisation(mode, constant)
