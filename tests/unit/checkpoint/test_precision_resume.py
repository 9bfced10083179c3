"""Bit-equal resume in every precision: fp32 weights, loss scale and the histories of delayed scaling come back."""

from pathlib import Path

import pytest
import torch

from megarl.checkpoint.tensors import load_tensors, save_tensors
from megarl.config.precision import FP8Config, LossScaleConfig, PrecisionConfig
from megarl.megatron.policy import Policy
from megarl.megatron.schedule import Update
from megarl.megatron.world import Layout
from megarl.objectives import SFT
from tests.unit.checkpoint.snapshot import policy_under
from tests.unit.checkpoint.test_tensors import layout
from tests.unit.megatron.tiny import random_batch

__all__ = ["layout"]

DELAYED = FP8Config(recipe="delayed", emulation=True, history=3)
CASES = {
    "bf16": (PrecisionConfig(dtype="bf16"), False),
    "bf16, distributed optimizer": (PrecisionConfig(dtype="bf16"), True),
    "fp16": (PrecisionConfig(dtype="fp16", loss_scale=LossScaleConfig(window=2)), False),
    "fp16, distributed optimizer": (
        PrecisionConfig(dtype="fp16", loss_scale=LossScaleConfig(window=2)),
        True,
    ),
    "delayed FP8": (PrecisionConfig(fp8=DELAYED), False),
}


def go_on(policy: Policy, first: int, count: int) -> list[Update]:
    return [policy.update(random_batch(4, seed=number), SFT(), micro_batch_size=2) for number in range(first, count)]


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.export()}


def policy_in(layout: Layout, precision: PrecisionConfig, distributed: bool, seed: int) -> Policy:
    shape = {"hidden_size": 32, "ffn_hidden_size": 64}
    return policy_under(layout, seed, precision=precision, distributed_optimizer=distributed, **shape)


@pytest.mark.parametrize("updates", [0, 3])
@pytest.mark.parametrize("case", CASES)
def test_resume_is_bit_equal(layout: Layout, tmp_path: Path, case: str, updates: int) -> None:
    """The updates that follow, and the weights after them."""
    precision, distributed = CASES[case]
    policy, other = (policy_in(layout, precision, distributed, seed) for seed in (1, 2))
    go_on(policy, 0, updates)
    assert policy.has_stepped == (updates > 0)
    save_tensors(policy, tmp_path, with_optimizer=updates > 0)
    wanted = go_on(policy, updates, 6)
    load_tensors(other, tmp_path, with_optimizer=updates > 0)
    assert go_on(other, updates, 6) == wanted
    after = weights(policy)
    assert all(torch.equal(tensor, after[name]) for name, tensor in other.export())


def test_skipped_first_steps_are_not_forgotten(layout: Layout, tmp_path: Path) -> None:
    """There are no moments to save yet, but a lower scale and one overflow less to the next."""
    scale = LossScaleConfig(initial=2.0**40, hysteresis=2)
    precision = PrecisionConfig(dtype="fp16", loss_scale=scale)
    policy, other = (policy_in(layout, precision, False, seed) for seed in (1, 2))
    go_on(policy, 0, 3)
    assert not policy.has_stepped
    save_tensors(policy, tmp_path, with_optimizer=False)
    load_tensors(other, tmp_path, with_optimizer=False)
    scales = [[update.loss_scale for update in go_on(p, 3, 5)] for p in (policy, other)]
    assert scales[0] == scales[1] == [2.0**38, 2.0**37]


def test_histories_come_back(layout: Layout, tmp_path: Path) -> None:
    precision = PrecisionConfig(fp8=DELAYED)
    policy, other = (policy_in(layout, precision, False, seed) for seed in (1, 2))
    go_on(policy, 0, 2)
    save_tensors(policy, tmp_path, with_optimizer=True)
    load_tensors(other, tmp_path, with_optimizer=True)
    histories = [
        {name: value for name, value in p.models[0].named_buffers() if name.endswith("history_H")}
        for p in (policy, other)
    ]
    # three tensors of four layers in each of two blocks
    assert len(histories[0]) == 3 * 4 * 2
    for name, history in histories[0].items():
        assert (history[:2] > 0).all() and history[2] == 0
        assert torch.equal(history, histories[1][name])
