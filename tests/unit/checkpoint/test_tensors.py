"""Weights, moments, schedule and generators through a checkpoint, in one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from megarl.checkpoint.tensors import load_tensors, plan_tensors, save_tensors
from megarl.config.model import ParallelConfig
from megarl.megatron.world import Layout, join_world, leave_world
from megarl.platform.pending_write import HostMemory
from tests.unit.checkpoint.snapshot import STEPS, differences, policy_under, snapshot, train
from tests.unit.megatron.tiny import noisy_weights


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    yield join_world(ParallelConfig(), seed=1)
    leave_world()


@pytest.mark.parametrize("updates", [0, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_a_resumed_policy_goes_on_bit_for_bit(layout: Layout, tmp_path: Path, updates: int, tied: bool) -> None:
    policy = policy_under(layout, 1, tie_embeddings=tied)
    train(policy, 0, updates)
    save_tensors(policy, tmp_path, with_optimizer=updates > 0)
    at_save = snapshot(policy)
    train(policy, updates, 2)
    after = snapshot(policy)

    other = policy_under(layout, 2, tie_embeddings=tied)
    torch.manual_seed(99)
    load_tensors(other, tmp_path, with_optimizer=updates > 0)
    if updates:
        assert differences(at_save, snapshot(other)) == []
        assert len(at_save["moments"]) == 2 * len(at_save["weights"])
    train(other, updates, 2)
    assert differences(after, snapshot(other)) == []


def test_saving_changes_nothing(layout: Layout, tmp_path: Path) -> None:
    saved, plain = policy_under(layout, 1), policy_under(layout, 1)
    for number, policy in enumerate((saved, plain)):
        torch.manual_seed(3)
        for step in range(2):
            if policy is saved:
                (tmp_path / f"{number}-{step}").mkdir()
                save_tensors(policy, tmp_path / f"{number}-{step}", with_optimizer=step > 0)
            train(policy, step, 1)
    # the generators are shared by the two policies
    a, b = ({k: v for k, v in snapshot(policy).items() if k != "generators"} for policy in (saved, plain))
    assert differences(a, b) == []


@pytest.mark.parametrize("change", ["an update", "a load"])
def test_what_is_copied_beside_the_training_is_copied_before_it_changes(
    layout: Layout, tmp_path: Path, change: str
) -> None:
    """The copy is made at the last moment that it is waited for; later it would have other numbers."""
    policy = policy_under(layout, 1)
    train(policy, 0, 1)
    at_plan = snapshot(policy)
    pending = plan_tensors(policy, tmp_path, with_optimizer=True, memory=HostMemory())
    policy.hold_until(pending.copy)
    if change == "an update":
        train(policy, 1, 1)
    else:
        policy.load(noisy_weights(policy.recipe.model, 7))
    assert differences(at_plan, snapshot(policy)) != []
    pending.write()
    pending.finish()
    pending.write_index()
    other = policy_under(layout, 2)
    load_tensors(other, tmp_path, with_optimizer=True)
    assert differences(at_plan, snapshot(other)) == []


def test_a_load_overwrites_a_policy_that_trained_on(layout: Layout, tmp_path: Path) -> None:
    policy = policy_under(layout, 1)
    train(policy, 0, 1)
    save_tensors(policy, tmp_path, with_optimizer=True)
    at_save = snapshot(policy)
    train(policy, 1, STEPS - 1)
    assert differences(at_save, snapshot(policy)) != []
    load_tensors(policy, tmp_path, with_optimizer=True)
    assert differences(at_save, snapshot(policy)) == []


def test_a_rank_that_was_not_there_is_told(layout: Layout, tmp_path: Path) -> None:
    policy = policy_under(layout, 1)
    save_tensors(policy, tmp_path, with_optimizer=False)
    (tmp_path / "rng-00000.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="rng-00000"):
        load_tensors(policy, tmp_path, with_optimizer=False)


def test_a_save_before_any_update_leaves_the_optimizer_without_state(layout: Layout, tmp_path: Path) -> None:
    """torch's AdamW, which Megatron-core takes on a GPU machine without TE and Apex, dies on moments without a step."""
    policy = policy_under(layout, 1)
    save_tensors(policy, tmp_path, with_optimizer=False)
    assert policy.optimizer.state_dict()["state"] == {}
