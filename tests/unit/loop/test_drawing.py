"""What a step draws: the engine's work is counted whole, and greedy responses are made for kept prompts alone."""

import hashlib
from collections.abc import Sequence

import pytest
import torch

from megarl.config.schema import Recipe
from megarl.data.problem import Problem
from megarl.data.registry import build_source
from megarl.data.tokenizer import build_tokenizer
from megarl.loop.rollouts import collect_rollouts
from megarl.loop.run import Run
from megarl.loop.stop import StopFlag
from megarl.megatron.models.qwen2 import hf_config
from megarl.megatron.weights import random_weights
from megarl.megatron.world import Layout
from megarl.rollout import Completion, Request, SamplingParams
from megarl.rollout.embedded import EmbeddedEngine
from tests.unit.loop.parts import run_without_parts
from tests.unit.megatron.hf import tensor_names

GROUP, PROMPTS = 4, 3


class RecordingEngine(EmbeddedEngine):
    """The engine, and what was asked of it."""

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        completions = super().generate(requests, sampling)
        self.asked = [*getattr(self, "asked", []), (sampling.greedy, completions)]
        return completions


def some_solved(response: str, problem: Problem) -> float:
    """Every second problem has answers worth 0 or 1 by their text; the others are worth 0."""
    if int(problem.id.rpartition("/")[2]) % 2:
        return 0.0
    return float(hashlib.blake2b(response.encode(), digest_size=1).digest()[0] % 2)


def sampling_run(advantage: str, *, dynamic: bool) -> tuple[Run, RecordingEngine]:
    """A run that can sample with random weights, and do nothing else."""
    recipe = Recipe()
    recipe.rollout.max_new_tokens = 5
    recipe.rl.prompts_per_step, recipe.rl.samples_per_prompt, recipe.rl.advantage = PROMPTS, GROUP, advantage
    recipe.rl.dynamic_sampling.enabled = dynamic
    tokenizer = build_tokenizer(recipe.tokenizer)
    engine = RecordingEngine(
        hf_config(recipe.model, len(tokenizer)), seed=0, max_batch_size=100, device=torch.device("cpu")
    )
    read = random_weights(recipe.model, len(tokenizer), 0)
    engine.load_weights(((name, read(name)) for name in tensor_names(recipe.model)), version=0)
    run = run_without_parts(
        recipe,
        source=build_source(recipe),
        tokenizer=tokenizer,
        reward=some_solved,
        engine=engine,
        layout=Layout(0, 1, 0, 1, is_last_stage=True, speaks=True),
        stop=StopFlag(),
    )
    return run, engine


def tokens(completions: Sequence[Completion]) -> int:
    return sum(len(completion.token_ids) for completion in completions)


@pytest.mark.parametrize("advantage", ["grpo", "remax"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_token_that_was_generated_is_counted(advantage: str, dynamic: bool) -> None:
    run, engine = sampling_run(advantage, dynamic=dynamic)
    rollouts = collect_rollouts(run, {})
    assert rollouts.tokens_generated == sum(tokens(completions) for _, completions in engine.asked)
    more = dynamic or advantage == "remax"
    assert (rollouts.tokens_generated > tokens(rollouts.completions)) == more
    assert len(rollouts.completions) == PROMPTS * GROUP
    assert (rollouts.problems_drawn > PROMPTS) == dynamic


@pytest.mark.parametrize("dynamic", [False, True])
def test_greedy_responses_belong_to_the_prompts_that_are_kept(dynamic: bool) -> None:
    run, engine = sampling_run("remax", dynamic=dynamic)
    rollouts = collect_rollouts(run, {})
    (greedy,) = [completions for is_greedy, completions in engine.asked if is_greedy]
    kept = [problem.id for problem in rollouts.problems]
    assert [completion.request.problem_id for completion in greedy] == kept[::GROUP]
    problems = rollouts.problems[::GROUP]
    rewards = [some_solved(run.response_text(own), problem) for own, problem in zip(greedy, problems, strict=True)]
    assert rollouts.baselines == [reward for reward in rewards for _ in range(GROUP)]
    assert kept == [problem_id for problem_id in kept[::GROUP] for _ in range(GROUP)]


def test_without_remax_nothing_is_greedy() -> None:
    run, engine = sampling_run("rloo", dynamic=True)
    assert collect_rollouts(run, {}).baselines == []
    assert not any(is_greedy for is_greedy, _ in engine.asked)


def test_kept_groups_differ_in_reward() -> None:
    run, _ = sampling_run("grpo", dynamic=True)
    rollouts = collect_rollouts(run, {})
    groups = [rollouts.rewards[begin : begin + GROUP] for begin in range(0, len(rollouts.rewards), GROUP)]
    assert len(groups) == PROMPTS and all(len(set(group)) > 1 for group in groups)
