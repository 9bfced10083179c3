"""FusedAdam against torch's own optimizers."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from megarl.platform import install

install()

from megarl.platform.cpu.optimizer import FusedAdam  # noqa: E402

SHAPES = [(8, 4), (16,), (3, 5), (1,)]
SETTINGS: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def parameters(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES]


def train(optimizer: torch.optim.Optimizer, params: list[Tensor], steps: range) -> None:
    """Steps with gradients that depend on the step alone."""
    for step in steps:
        generator = torch.Generator().manual_seed(100 + step)
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("decoupled", [True, False])
def test_equals_torch_bit_for_bit(decoupled: bool) -> None:
    ours, theirs = parameters(), parameters()
    reference = torch.optim.AdamW if decoupled else torch.optim.Adam
    train(FusedAdam(ours, adam_w_mode=decoupled, **SETTINGS), ours, range(6))
    train(reference(theirs, fused=True, **SETTINGS), theirs, range(6))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_equals_the_formula() -> None:
    ours = parameters()
    expected = [param.detach().double().clone() for param in ours]
    train(FusedAdam(ours, **SETTINGS), ours, range(3))
    moments = [(torch.zeros_like(x), torch.zeros_like(x)) for x in expected]
    for step in range(3):
        generator = torch.Generator().manual_seed(100 + step)
        for x, (first, second) in zip(expected, moments, strict=True):
            grad = torch.randn(x.shape, generator=generator).double()
            first.mul_(0.9).add_(0.1 * grad)
            second.mul_(0.95).add_(0.05 * grad**2)
            unbiased = (second / (1 - 0.95 ** (step + 1))).sqrt()
            x.mul_(1 - 0.01 * 0.1).sub_(0.01 * (first / (1 - 0.9 ** (step + 1))) / (unbiased + 1e-8))
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=1e-6)


def test_state_has_apex_names() -> None:
    params = parameters()
    optimizer = FusedAdam([{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0}], **SETTINGS)
    assert all("step" not in group for group in optimizer.param_groups)
    train(optimizer, params, range(2))
    assert [group["step"] for group in optimizer.param_groups] == [2, 2]
    assert all(set(optimizer.state[param]) == {"exp_avg", "exp_avg_sq"} for param in params)


def test_group_without_parameters_has_no_step() -> None:
    params = parameters()
    optimizer = FusedAdam([{"params": params}, {"params": []}], **SETTINGS)
    train(optimizer, params, range(2))
    assert optimizer.param_groups[0]["step"] == 2
    assert "step" not in optimizer.param_groups[1]


def test_parameter_without_gradient_stays() -> None:
    params = parameters()
    before = params[1].detach().clone()
    optimizer = FusedAdam(params, **SETTINGS)
    params[0].grad = torch.ones_like(params[0])
    optimizer.step()
    assert torch.equal(params[1], before)
    assert params[1] not in optimizer.state


def test_step_without_any_gradient_changes_nothing() -> None:
    params = parameters()
    before = [param.detach().clone() for param in params]
    FusedAdam(params, **SETTINGS).step()
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))


def test_resumed_run_is_bit_equal() -> None:
    whole, resumed = parameters(), parameters()
    train(FusedAdam(whole, **SETTINGS), whole, range(6))
    first = FusedAdam(resumed, **SETTINGS)
    train(first, resumed, range(3))
    second = FusedAdam(resumed, **SETTINGS)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(second, resumed, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


def test_zero_grad_obeys_set_grad_none() -> None:
    params = parameters()
    params[0].grad = torch.ones_like(params[0])
    FusedAdam(params, set_grad_none=False).zero_grad()
    assert params[0].grad is not None and not params[0].grad.any()
    FusedAdam(params).zero_grad()
    assert params[0].grad is None


@pytest.mark.parametrize("setting", [{"amsgrad": True}, {"bias_correction": False}])
def test_unsupported_settings_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        FusedAdam(parameters(), **setting)


def test_megatron_uses_it() -> None:
    import megatron.core.optimizer as optimizers
    from megatron.core.optimizer import distrib_optimizer

    assert optimizers.Adam is distrib_optimizer.Adam is FusedAdam
    assert not optimizers.USING_PYTORCH_OPTIMIZER
    assert distrib_optimizer.HAVE_APEX_OR_TE and distrib_optimizer.USING_APEX_OPTIMIZER
