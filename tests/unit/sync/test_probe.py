"""The probe tells an engine with other weights from one that rounds otherwise."""

from collections.abc import Iterator

import pytest
import torch

from megarl.config.model import ParallelConfig
from megarl.megatron.policy import FrozenModel
from megarl.megatron.world import Layout, join_world, leave_world
from megarl.rollout.build import build_engine
from megarl.rollout.engine import WeightsError
from megarl.sync.probe import Probe
from tests.unit.megatron.tiny import VOCAB, noisy_weights, tiny_recipe


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    yield join_world(ParallelConfig(), seed=1)
    leave_world()


@pytest.mark.parametrize("stale", ["model.norm.weight", "model.layers.1.self_attn.v_proj.weight"])
def test_one_stale_tensor_is_enough(layout: Layout, stale: str) -> None:
    recipe = tiny_recipe()
    policy, engine = FrozenModel(recipe, layout, VOCAB), build_engine(recipe, VOCAB)
    policy.load(noisy_weights(recipe.model))
    tensors = {name: tensor.clone() for name, tensor in policy.export()}
    probe = Probe(recipe, policy)

    engine.load_weights(tensors.items(), 1)
    found = probe.check([engine.generate(probe.requests(), probe.sampling)], version=1)
    assert found.tokens > 0 and found.mean <= found.bound

    tensors[stale] = torch.roll(tensors[stale], 1, 0)
    engine.load_weights(tensors.items(), 2)
    with pytest.raises(WeightsError, match="rounding explains"):
        probe.check([engine.generate(probe.requests(), probe.sampling)], version=2)


def test_answers_under_an_older_version_are_refused(layout: Layout) -> None:
    recipe = tiny_recipe()
    policy, engine = FrozenModel(recipe, layout, VOCAB), build_engine(recipe, VOCAB)
    policy.load(noisy_weights(recipe.model))
    engine.load_weights(policy.export(), 1)
    probe = Probe(recipe, policy)
    with pytest.raises(WeightsError, match=r"version \[1\] after a sync of 2"):
        probe.check([engine.generate(probe.requests(), probe.sampling)], version=2)
