"""The model that experiments run on, against transformers' own pass; each switch changes something, and only once."""

from dataclasses import replace

import pytest
import torch

from megarl.diagnose.selftest.scene import Scene
from megarl.drift.diagnosis.computation import Computation
from megarl.drift.diagnosis.rollouts import Rollouts

SWITCHES = [
    Computation(dtype="bf16"),
    Computation(head="bf16"),
    Computation(residual="bf16"),
    Computation(operands="fp8_tensor"),
    Computation(operands="fp8_row"),
    Computation(operands="fp8_block"),
    Computation(operands="int8_row"),
    Computation(tied=True),
    Computation(rope_theta=1e6),
    Computation(rope_factor=4.0),
    Computation(padding="attended"),
    Computation(padding="gap"),
    Computation(packed=2),
    Computation(packed=2, restarts=False),
    Computation(causal=False),
    Computation(window=8),
    Computation(age=1),
    Computation(prompt_age=1),
    Computation(prompt_age=1, block=4),
    Computation(tensors=("lm_head.weight",), tensors_age=1),
    Computation(drop=1),
    Computation(prepend=(2,)),
]


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "qwen3_moe"])
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene.build(request.param, 1, "fp32")


@pytest.fixture(scope="module")
def rollouts(scene: Scene) -> Rollouts:
    return scene.rollouts()


@torch.no_grad()
def test_logits_are_those_of_transformers(scene: Scene, rollouts: Rollouts) -> None:
    width = rollouts.ids_BT.shape[1]
    mask_BT = (torch.arange(width) < rollouts.lengths_B[:, None]).long()
    logits_BTV = scene.versions[0](input_ids=rollouts.ids_BT, attention_mask=mask_BT).logits
    theirs_NV = logits_BTV[:, :-1][rollouts.mask_BT[:, 1:]]
    own_NV = scene.model.logits(rollouts, Computation())
    exact_NV = scene.model.logits(rollouts, Computation(dtype="fp64"))
    rounding = (own_NV - exact_NV).abs().mean()
    # two right computations are at most two roundings apart in the mean; logits are up to 8
    assert (theirs_NV - own_NV).abs().mean() <= 2 * rounding
    assert 0 < rounding < 100 * 8 * 2.0**-23


def test_rows_one_by_one_differ_by_rounding_alone(scene: Scene, rollouts: Rollouts) -> None:
    together_NV = scene.model.logits(rollouts, Computation())
    alone_NV = scene.model.logits(rollouts, Computation(rows_at_once=1))
    exact_NV = scene.model.logits(rollouts, Computation(dtype="fp64"))
    assert (together_NV - alone_NV).abs().mean() <= 2 * (together_NV - exact_NV).abs().mean()


@pytest.mark.parametrize("computation", SWITCHES, ids=str)
def test_a_switch_changes_the_logits_and_leaves_the_model_as_it_was(
    scene: Scene, rollouts: Rollouts, computation: Computation
) -> None:
    model = scene.model
    before_NV = model.logits(rollouts, Computation())
    switched_NV = model.logits(rollouts, computation)
    exact_NV = model.logits(rollouts, Computation(dtype="fp64"))
    assert (switched_NV - before_NV).abs().mean() > 100 * (before_NV - exact_NV).abs().mean()
    assert torch.equal(model.logits(rollouts, Computation()), before_NV)


def test_own_experts_replayed_change_nothing(scene: Scene, rollouts: Rollouts) -> None:
    if not scene.model.traits.experts:
        pytest.skip("a dense model")
    rows, width = rollouts.ids_BT.shape
    unknown_BTLK = torch.full((rows, width, scene.model.traits.layers, 2), -1)
    replayed = replace(rollouts, experts_BTLK=unknown_BTLK)
    own_NV = scene.model.logits(rollouts, Computation())
    assert torch.equal(scene.model.logits(replayed, Computation(replay=True)), own_NV)
    first_NV = scene.model.logits(
        replace(rollouts, experts_BTLK=torch.tensor([0, 1]).expand(unknown_BTLK.shape)), Computation(replay=True)
    )
    assert (first_NV - own_NV).abs().mean() > 1e-2
