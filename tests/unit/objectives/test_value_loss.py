"""PPO's clipped value loss: its formula, its gradient, and what the mask hides."""

import math

import pytest
import torch

from megarl.objectives.value_loss import clipped_value_loss
from tests.unit.objectives.reference import ragged_mask, uniform

ROWS, WIDTH, CLIP = 6, 7, 0.2


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = (ROWS, WIDTH)
    return uniform(-1, 1, shape, 0), uniform(-1, 1, shape, 1), uniform(-1, 1, shape, 2), ragged_mask(ROWS, WIDTH, 3)


def test_it_is_its_formula() -> None:
    values, old, returns, mask = inputs()
    values.requires_grad_()
    loss, clipped = clipped_value_loss(values, old, returns, mask, CLIP)
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    assert clipped[mask].any() and not clipped[mask].all()
    for i, t in mask.nonzero().tolist():
        v, o, r = (tensor[i, t].item() for tensor in (values, old, returns))
        near = o + min(max(v - o, -CLIP), CLIP)
        assert loss[i, t].item() == pytest.approx(0.5 * max((v - r) ** 2, (near - r) ** 2), rel=1e-12)
        assert bool(clipped[i, t]) == ((near - r) ** 2 > (v - r) ** 2)
        # beyond the clip the larger term does not move with the value
        assert gradient[i, t].item() == pytest.approx(0.0 if clipped[i, t] else v - r, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e9])
def test_what_the_mask_hides_is_not_read(junk: float) -> None:
    values, old, returns, mask = inputs()
    results = []
    for tensors in ((values, old, returns), tuple(t.masked_fill(~mask, junk) for t in (values, old, returns))):
        own = tensors[0].clone().requires_grad_()
        loss, _ = clipped_value_loss(own, tensors[1], tensors[2], mask, CLIP)
        results.append((loss.detach(), torch.autograd.grad(loss.sum(), own)[0]))
    (loss, gradient), (other_loss, other_gradient) = results
    assert torch.equal(loss, other_loss) and torch.equal(gradient, other_gradient)
    assert not loss[~mask].any() and not gradient[~mask].any() and gradient.any()
