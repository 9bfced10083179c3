"""The probe tells an engine with other weights from one that rounds otherwise."""

from collections.abc import Iterator

import pytest
import torch

from megarl.config.model import ParallelConfig
from megarl.loop.probe_tokens import probe
from megarl.megatron.policy import FrozenModel
from megarl.megatron.world import Layout, join_world, leave_world
from megarl.rollout.build import build_engine
from tests.unit.megatron.tiny import VOCAB, noisy_weights, tiny_recipe


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    yield join_world(ParallelConfig(), seed=1)
    leave_world()


@pytest.mark.parametrize("stale", [None, "model.norm.weight", "model.layers.1.self_attn.v_proj.weight"])
def test_one_stale_tensor_is_enough(layout: Layout, stale: str | None) -> None:
    recipe = tiny_recipe()
    policy, engine = FrozenModel(recipe, layout, VOCAB), build_engine(recipe, VOCAB)
    policy.load(noisy_weights(recipe.model))
    tensors = {name: tensor.clone() for name, tensor in policy.export()}
    if stale is not None:
        tensors[stale] = torch.roll(tensors[stale], 1, 0)
    engine.load_weights(tensors.items(), 1)
    found = probe(recipe, policy, engine)
    assert found.tokens > 0
    assert (found.wrong is None) == (stale is None), found
