"""Generation beside training: what is refused, and what is warned of."""

from collections.abc import Callable

import pytest

from megarl.config.advice import warnings_of
from megarl.config.errors import RecipeError
from megarl.config.load import load_recipe

Write = Callable[[str, str], str]

SERVED = ("rollout.engine=vllm",)
TIS = ("rl.correction.mode=decoupled", "rl.correction.weighting=tis")
ONE_STEP_OFF = (*SERVED, "rl.asynchrony.mode=one_step_off")
FULLY_ASYNC = (*SERVED, "rl.asynchrony.mode=fully_async")

# Overrides -> the refusal, and what to change so that the recipe passes: the fix that the message names.
CASES: list[tuple[list[str], str, list[str]]] = [
    (
        ["rl.asynchrony.mode=one_step_off"],
        "rl.asynchrony.mode=one_step_off needs servers, and rollout.engine=embedded generates in the trainer's own "
        "processes; set rollout.engine=vllm or sglang, or rl.asynchrony.mode=sync.",
        [*SERVED],
    ),
    (
        [*ONE_STEP_OFF, "rl.advantage=remax"],
        "rl.advantage=remax asks for greedy responses within the step, which rl.asynchrony.mode=one_step_off leaves no "
        "room for; set rl.advantage=rloo, or rl.asynchrony.mode=sync.",
        ["rl.advantage=rloo"],
    ),
    (
        [*ONE_STEP_OFF, "model.family=qwen3_moe", "model.moe.num_experts=4", "rl.routing_replay=experts"],
        "rl.routing_replay=experts would replay the routing of older weights under rl.asynchrony.mode=one_step_off; "
        "set it to none, or rl.asynchrony.mode=sync.",
        ["rl.routing_replay=none"],
    ),
    (
        [*FULLY_ASYNC],
        "rl.asynchrony.spanning=correct needs importance weights or rejections, and rl.correction has none; set "
        "rl.correction.mode=decoupled and rl.correction.weighting=tis, or rl.asynchrony.spanning=drop.",
        [*TIS],
    ),
    (
        [*FULLY_ASYNC, *TIS, "rl.asynchrony.spanning=keep"],
        "rl.asynchrony.spanning=keep leaves spanning responses uncorrected, and the recipe corrects every response; "
        "set rl.asynchrony.spanning=correct.",
        ["rl.asynchrony.spanning=correct"],
    ),
    (
        [*FULLY_ASYNC, "rl.asynchrony.spanning=drop", "rl.asynchrony.kv_cache=keep"],
        "rl.asynchrony.kv_cache=keep is of responses that go on after an update, and rl.asynchrony.spanning=drop "
        "begins them anew; set rl.asynchrony.kv_cache=recompute.",
        ["rl.asynchrony.kv_cache=recompute"],
    ),
]


@pytest.mark.parametrize(("overrides", "message", "fix"), CASES, ids=lambda value: " ".join(value)[:60])
def test_what_cannot_be_is_refused_with_its_fix(
    overrides: list[str], message: str, fix: list[str], write: Write
) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write("a.yaml", ""), overrides)
    assert str(caught.value) == message
    load_recipe(write("a.yaml", ""), [*overrides, *fix])


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        ([*ONE_STEP_OFF], True),
        ([*FULLY_ASYNC, "rl.asynchrony.spanning=keep"], True),
        ([*ONE_STEP_OFF, *TIS], False),
        ([*ONE_STEP_OFF, "rl.correction.mode=bypass"], False),
        ([*ONE_STEP_OFF, "rl.objective.name=decoupled_ppo"], False),
        # opsm compares the policy with the old one, and not with who sampled
        ([*ONE_STEP_OFF, "rl.updates_per_step=2", "rl.correction.mode=decoupled", "rl.correction.opsm=0.1"], True),
        ([*SERVED], False),
        ([*ONE_STEP_OFF, "rl.steps=0"], False),
    ],
)
def test_older_weights_without_a_correction_are_warned_of(overrides: list[str], warned: bool, write: Write) -> None:
    found = warnings_of(load_recipe(write("a.yaml", ""), overrides).recipe)
    assert [("trains on responses of older weights" in warning) for warning in found] == [True] * warned
