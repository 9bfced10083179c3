"""A real vLLM behind the fleet: token ids in and out, log-probs equal to the trainer's, and following its weights."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from megarl.config.schema import Recipe
from megarl.config.training import OptimizerConfig
from megarl.megatron.batch import pad_batch
from megarl.megatron.policy import Policy
from megarl.megatron.world import Layout
from megarl.objectives import SFT
from megarl.platform.platform import current
from megarl.rollout.engine import EngineError
from megarl.rollout.fleet import Fleet
from megarl.rollout.types import Request, VersionSpan
from megarl.sync.push import ServedSync
from tests.engines.served import (
    FP32_TOLERANCE,
    SAMPLING,
    STOP,
    VOCAB,
    farthest,
    policy_of,
    reload,
    requests,
)

pytestmark = pytest.mark.vllm

GREEDY = replace(SAMPLING, greedy=True)


@pytest.fixture(scope="module")
def policy(recipe: Recipe, layout: Layout) -> Policy:
    return policy_of(recipe, layout, seed=3)


@pytest.fixture(scope="module")
def sync(recipe: Recipe, policy: Policy, fleet: Fleet) -> Iterator[ServedSync]:
    made = ServedSync(recipe, policy, fleet)
    made.push(0)
    yield made
    made.close()


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
def test_log_probs_are_the_trainers(temperature: float, sync: ServedSync, policy: Policy, fleet: Fleet) -> None:
    asked = requests(8)
    completions = fleet.generate(asked, replace(SAMPLING, temperature=temperature))
    assert [completion.request for completion in completions] == asked
    # a lower temperature divides the logits' errors alike
    assert farthest(policy, completions, temperature) < FP32_TOLERANCE / min(temperature, 1.0)


def test_responses_end_at_the_stop_token_or_at_the_limit(sync: ServedSync, fleet: Fleet) -> None:
    completions = fleet.generate(requests(12), SAMPLING)
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}
    for completion in completions:
        stops = [place for place, token in enumerate(completion.token_ids) if token == STOP]
        if completion.finish_reason == "stop":
            assert stops == [len(completion.token_ids) - 1]
        else:
            assert not stops and len(completion.token_ids) == SAMPLING.max_new_tokens
        assert all(0 <= token < VOCAB for token in completion.token_ids)
        assert completion.versions == (VersionSpan(fleet.version, 0, len(completion.token_ids)),)


def test_a_request_is_the_same_alone_in_another_batch_and_again(sync: ServedSync, fleet: Fleet) -> None:
    asked = requests(6)
    first = fleet.generate(asked, SAMPLING)
    assert fleet.generate(asked, SAMPLING) == first
    assert fleet.generate(asked[::-1], SAMPLING)[::-1] == first
    assert fleet.generate(asked[4:5], SAMPLING) == first[4:5]


def test_samples_of_a_prompt_differ_and_so_do_occasions(sync: ServedSync, fleet: Fleet) -> None:
    now, later = (fleet.generate(requests(6, stream=stream), SAMPLING) for stream in ("rl/0", "rl/1"))
    assert [completion.token_ids for completion in now] != [completion.token_ids for completion in later]
    groups = [{completion.token_ids for completion in now[begin : begin + 3]} for begin in range(0, len(now), 3)]
    assert any(len(group) > 1 for group in groups)


def test_greedy_takes_the_likeliest_token(sync: ServedSync, fleet: Fleet) -> None:
    completions = fleet.generate(requests(6), GREEDY)
    for begin in range(0, len(completions), 3):
        assert len({completion.token_ids for completion in completions[begin : begin + 3]}) == 1
    sampled = fleet.generate(requests(6), SAMPLING)
    assert [completion.token_ids for completion in sampled] != [completion.token_ids for completion in completions]


def test_context_bounds_a_response(recipe: Recipe, sync: ServedSync, policy: Policy, fleet: Fleet) -> None:
    context = recipe.model.max_position_embeddings
    rooms = (1, 2, 8, 16)
    asked = [
        Request(f"p{room}", sample, tuple(token % VOCAB for token in range(context - room)), "rl/0")
        for room in rooms
        for sample in range(6)
    ]
    completions = fleet.generate(asked, replace(SAMPLING, max_new_tokens=context))
    full = [done for done in completions if done.finish_reason == "length"]
    assert {done.request.problem_id for done in full} == {f"p{room}" for room in rooms}
    assert all(len(done.token_ids) + len(done.request.prompt_ids) == context for done in full)
    assert farthest(policy, completions) < FP32_TOLERANCE


def test_a_prompt_without_room_is_refused_and_the_server_lives(recipe: Recipe, sync: ServedSync, fleet: Fleet) -> None:
    full = Request("full", 0, (1,) * recipe.model.max_position_embeddings, "rl/0")
    with pytest.raises(EngineError, match="answered 4"):
        fleet.generate([full], SAMPLING)
    assert len(fleet.generate(requests(1), SAMPLING)) == 3


def test_log_probs_follow_an_optimizer_step(sync: ServedSync, policy: Policy, fleet: Fleet) -> None:
    asked = requests(8)
    before = fleet.generate(asked, SAMPLING)
    policy.start_phase(OptimizerConfig(lr=1e-2, warmup_steps=0), 4)
    batch = pad_batch(
        [done.request.prompt_ids for done in before], [done.token_ids for done in before], current().device
    )
    policy.update(batch, SFT(), micro_batch_size=len(before))
    # the trainer has moved and the engine has not
    assert farthest(policy, before) > 100 * FP32_TOLERANCE
    sync.push(1)
    after = fleet.generate(asked, SAMPLING)
    assert {span.version for done in after for span in done.versions} == {1}
    assert farthest(policy, after) < FP32_TOLERANCE


@pytest.mark.parametrize("turn", range(2))
def test_log_probs_follow_other_weights(turn: int, sync: ServedSync, policy: Policy, fleet: Fleet) -> None:
    """Every tensor is another, the prompts are the same: neither weights nor keys and values of the old are used."""
    asked = requests(8, longest=100)
    before = fleet.generate(asked, SAMPLING)
    reload(policy, seed=20 + turn)
    assert farthest(policy, before) > 100 * FP32_TOLERANCE
    sync.push(2 + turn)
    assert farthest(policy, fleet.generate(asked, SAMPLING)) < FP32_TOLERANCE
