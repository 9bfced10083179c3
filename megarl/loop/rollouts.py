"""A step's responses with their rewards: generated, scored, and, where the recipe wants it, drawn again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from megarl.config.errors import UserError
from megarl.config.objective import OverlongConfig
from megarl.data.problem import Problem
from megarl.loop.run import Run
from megarl.loop.timed import timed
from megarl.rewards.registry import score
from megarl.rewards.score import score_on_all_ranks
from megarl.rollout.types import Completion


@dataclass
class Rollouts:
    """B responses, group by group, the same on every rank.

    Attributes:
        problems: the problem of each response.
        completions: the responses.
        texts: the responses as text.
        rewards: what each is worth, the overlong penalty taken off.
        task_rewards: the same with no penalty taken off, by which groups are uniform or not.
        baselines: reward of the greedy response to the same prompt, where the advantage needs it.
        problems_drawn: problems taken from the source for them.
        uniform_groups: prompts drawn whose responses all got the same reward.
        tokens_generated: by the engine for them, of responses that were dropped and of greedy ones too.
    """

    problems: list[Problem] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    task_rewards: list[float] = field(default_factory=list)
    baselines: list[float] = field(default_factory=list)
    problems_drawn: int = 0
    uniform_groups: int = 0
    tokens_generated: int = 0

    @property
    def rewards_B(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """Rewards, fp32."""
        return torch.tensor(self.rewards)

    def take(self, other: "Rollouts", rows: slice) -> None:
        """Appends the other's rows."""
        for name in ("problems", "completions", "texts", "rewards", "task_rewards"):
            getattr(self, name).extend(getattr(other, name)[rows])


def collect_rollouts(run: Run, seconds: dict[str, float]) -> Rollouts:
    """The step's responses, with the baselines that the advantage needs. Collective.

    Raises:
        UserError: see `_drawn`.
    """
    rollouts = _drawn(run, seconds)
    if run.recipe.rl.advantage == "remax":
        # of the prompts that are trained on alone, so after the choice of them
        _add_greedy_baselines(run, rollouts, seconds)
    return rollouts


def _drawn(run: Run, seconds: dict[str, float]) -> Rollouts:
    """The step's responses with their rewards. Collective.

    With dynamic sampling, prompts whose responses all got the same reward are left out, and more are drawn until the
    batch is full (DAPO, 2503.14476, section 3.2). What is drawn beyond that is dropped.

    Raises:
        UserError: `rl.dynamic_sampling.max_batches` were drawn and the batch is still not full.
    """
    config = run.recipe.rl
    group, wanted = config.samples_per_prompt, config.rollouts_per_step
    if not config.dynamic_sampling.enabled:
        return _draw(run, seconds, 0)
    kept = Rollouts()
    for _ in range(config.dynamic_sampling.max_batches):
        drawn = _draw(run, seconds, kept.problems_drawn)
        kept.problems_drawn += drawn.problems_drawn
        kept.uniform_groups += drawn.uniform_groups
        kept.tokens_generated += drawn.tokens_generated
        for begin in range(0, wanted, group):
            rows = slice(begin, begin + group)
            if len(set(drawn.task_rewards[rows])) > 1 and len(kept.rewards) < wanted:
                kept.take(drawn, rows)
        if len(kept.rewards) == wanted:
            return kept
    run.save()
    raise UserError(
        f"rl.dynamic_sampling.max_batches={config.dynamic_sampling.max_batches} batches gave "
        f"{len(kept.rewards) // group} of the {config.prompts_per_step} prompts whose responses differ in reward; take "
        "problems that the policy solves sometimes, in a new output_dir; this run's state was saved."
    )


def _draw(run: Run, seconds: dict[str, float], after: int) -> Rollouts:
    """One batch of prompts and their responses, `after` problems behind the state's position."""
    config, state = run.recipe.rl, run.state
    first = state.problems_drawn + after
    problems = [run.source.training(first + index) for index in range(config.prompts_per_step)]
    if run.ahead is not None:
        with timed(seconds, "generation_wait"):
            completions = run.ahead.take(first)
    else:
        with timed(seconds, "rollout"):
            requests = run.requests(problems, config.samples_per_prompt, stream=f"rl/{state.step}")
            completions = run.generate(requests, run.sampling(with_routing=config.routing_replay != "none"))
    of_response = [problem for problem in problems for _ in range(config.samples_per_prompt)]
    texts = [run.response_text(completion) for completion in completions]
    with timed(seconds, "reward"):
        task_rewards = _rewards(run, texts, of_response)
    return Rollouts(
        problems=of_response,
        completions=completions,
        texts=texts,
        rewards=_penalised(run, task_rewards, completions),
        task_rewards=task_rewards,
        problems_drawn=len(problems),
        uniform_groups=uniform_groups(of_response, task_rewards),
        tokens_generated=_tokens(completions),
    )


def overlong_penalty(tokens: int, longest: int, config: OverlongConfig) -> float:
    """DAPO's soft overlong penalty (2503.14476, eq. 13): rises over the last `buffer_tokens` before the limit."""
    if config.buffer_tokens == 0:
        return 0.0
    into_buffer = tokens - (longest - config.buffer_tokens)
    return config.penalty * min(max(into_buffer / config.buffer_tokens, 0.0), 1.0)


def uniform_groups(problems: Sequence[Problem], rewards: Sequence[float]) -> int:
    """Prompts with several responses that all got the same reward."""
    rewards_of: dict[str, list[float]] = {}
    for problem, reward in zip(problems, rewards, strict=True):
        rewards_of.setdefault(problem.id, []).append(reward)
    return sum(len(group) > 1 and len(set(group)) == 1 for group in rewards_of.values())


def _rewards(run: Run, texts: Sequence[str], problems: Sequence[Problem]) -> list[float]:
    layout = run.layout
    rewards_B = score_on_all_ranks(partial(score, run.reward), texts, problems, layout.rank, layout.world_size)
    values: list[float] = rewards_B.tolist()
    return values


def _add_greedy_baselines(run: Run, rollouts: Rollouts, seconds: dict[str, float]) -> None:
    """Gives each response the reward of the likeliest response to its prompt, ReMax's baseline."""
    group = run.recipe.rl.samples_per_prompt
    problems = rollouts.problems[::group]
    with timed(seconds, "rollout"):
        requests = run.requests(problems, 1, stream=f"rl/{run.state.step}/greedy")
        completions = run.generate(requests, run.sampling(greedy=True))
    with timed(seconds, "reward"):
        rewards = _rewards(run, [run.response_text(completion) for completion in completions], problems)
    rollouts.baselines = [reward for reward in _penalised(run, rewards, completions) for _ in range(group)]
    rollouts.tokens_generated += _tokens(completions)


def _tokens(completions: Sequence[Completion]) -> int:
    return sum(len(completion.token_ids) for completion in completions)


def _penalised(run: Run, rewards: Sequence[float], completions: Sequence[Completion]) -> list[float]:
    """Rewards less the overlong penalty."""
    longest, config = run.recipe.rollout.max_new_tokens, run.recipe.rl.overlong
    lengths = [len(completion.token_ids) for completion in completions]
    return [reward - overlong_penalty(tokens, longest, config) for reward, tokens in zip(rewards, lengths, strict=True)]
