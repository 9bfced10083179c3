"""What can go wrong between the trainer's weights and a real vLLM's, planted one by one: each is found and named."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from megarl.config.schema import Recipe
from megarl.megatron.policy import Policy
from megarl.megatron.world import Layout
from megarl.rollout.engine import WeightsError
from megarl.rollout.fleet import Fleet
from megarl.sync.push import ServedSync
from tests.engines.faulty import (
    Change,
    FaultySender,
    MisnamedPolicy,
    ServerThatKeepsItsCache,
    altered,
    swapped,
)
from tests.engines.served import FP32_TOLERANCE, SAMPLING, farthest, policy_of, reload, requests

pytestmark = pytest.mark.vllm

LAYER = "model.layers.1."
QUERY, OUTPUT = f"{LAYER}self_attn.q_proj.weight", f"{LAYER}self_attn.o_proj.weight"
GATE, UP = f"{LAYER}mlp.gate_proj.weight", f"{LAYER}mlp.up_proj.weight"
# what was done to the tensors, the tensor that the sentence names, and the cause that it gives
CHANGED: dict[str, tuple[Change, str, str]] = {
    "swapped": (swapped(GATE, UP), GATE, f"the engine was given the bytes of {UP} under this name"),
    "transposed": (altered(QUERY, lambda tensor: tensor.T.contiguous()), QUERY, "it was transposed on the way"),
    "rounded": (
        altered(QUERY, lambda tensor: tensor.bfloat16().float()),
        QUERY,
        r"it was rounded to torch\.bfloat16 on the way",
    ),
    "never written": (altered(QUERY, torch.zeros_like), QUERY, "its bytes were never written: all are zero"),
    "noise": (altered(QUERY, lambda tensor: tensor + 1e-6), QUERY, "its bytes are those of no other tensor"),
}


@pytest.fixture(scope="module")
def policy(recipe: Recipe, layout: Layout) -> Policy:
    return policy_of(recipe, layout, seed=5)


@pytest.fixture
def sync(recipe: Recipe, policy: Policy, fleet: Fleet) -> Iterator[ServedSync]:
    made = ServedSync(recipe, policy, fleet)
    yield made
    made.close()


def plant(sync: ServedSync, **fault: Any) -> None:
    assert sync._sender is not None
    sync._sender = FaultySender(sync._sender, **fault)


@pytest.mark.parametrize("case", CHANGED)
def test_a_tensor_that_changes_on_the_way(case: str, sync: ServedSync) -> None:
    change, name, cause = CHANGED[case]
    plant(sync, change=change)
    with pytest.raises(WeightsError, match=f"^{name} did not arrive as it was sent: digest [0-9a-f]+ here, .*{cause}"):
        sync.push(1)


def test_a_tensor_that_is_not_sent(sync: ServedSync) -> None:
    plant(sync, left_out=frozenset({OUTPUT}))
    with pytest.raises(WeightsError, match=f"^{OUTPUT} did not arrive .* none at the engine; it was not sent"):
        sync.push(1)


def test_a_tensor_of_the_version_before(sync: ServedSync, policy: Policy) -> None:
    reload(policy, seed=6)
    sync.push(1)
    old = dict(policy.export())[QUERY].clone()
    reload(policy, seed=7)
    plant(sync, change=altered(QUERY, lambda _: old))
    sync._proven = False
    with pytest.raises(WeightsError, match=f"^{QUERY} did not arrive .* an earlier version: a stale tensor"):
        sync.push(2)


def test_tensors_that_the_trainer_misnames(recipe: Recipe, policy: Policy, fleet: Fleet) -> None:
    """Every byte arrives, under a wrong name: only what the engine computes tells."""
    sync = ServedSync(recipe, MisnamedPolicy(policy, GATE, UP), fleet)  # type: ignore[arg-type]
    with pytest.raises(WeightsError, match=r"^every tensor arrived, yet .* sent under each other's names"):
        sync.push(1)
    sync.close()


def test_a_stale_prefix_cache(sync: ServedSync, policy: Policy, fleet: Fleet) -> None:
    reload(policy, seed=8)
    sync.push(1)
    reload(policy, seed=9)
    sync._proven = False
    (replica,) = fleet._replicas
    server = replica._server
    kind = server.__class__
    server.__class__ = ServerThatKeepsItsCache
    try:
        with pytest.raises(WeightsError, match="it answers from a stale prefix cache"):
            sync.push(2)
    finally:
        server.__class__ = kind


def test_after_every_fault_a_whole_sync_serves_again(sync: ServedSync, policy: Policy, fleet: Fleet) -> None:
    """A failed sync leaves the engine paused in the middle of an update; the next one brings all of it up."""
    plant(sync, left_out=frozenset({OUTPUT}))
    with pytest.raises(WeightsError):
        sync.push(3)
    reload(policy, seed=10)
    whole = ServedSync(policy.recipe, policy, fleet)
    whole.push(4)
    assert farthest(policy, fleet.generate(requests(4), SAMPLING)) < FP32_TOLERANCE
    whole.close()
