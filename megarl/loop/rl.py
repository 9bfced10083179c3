"""One step of reinforcement learning, as it reads in a paper: roll out, reward, compare, update, sync."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from megarl.data.problem import Problem
from megarl.drift import drift_metrics
from megarl.loop.run import Run, timed
from megarl.megatron.batch import TrainBatch, on_targets, pad_batch
from megarl.megatron.policy import Update
from megarl.objectives import ADVANTAGES
from megarl.observe.samples import Sample
from megarl.platform.platform import current
from megarl.rewards.registry import score
from megarl.rewards.score import score_on_all_ranks
from megarl.rollout.types import Completion
from megarl.sync.in_process import push_weights


def rl_step(run: Run) -> tuple[dict[str, float], list[Sample]]:
    """One step: the state's next prompts, its weights before, one version more after. Collective.

    Returns:
        The step's metrics, and a few of its rollouts as text.
    """
    config, state, layout = run.recipe.rl, run.state, run.layout
    seconds: dict[str, float] = {}
    with timed(seconds, "step"):
        with timed(seconds, "rollout"):
            problems = [run.source.training(state.problems_drawn + i) for i in range(config.prompts_per_step)]
            requests = run.requests(problems, config.samples_per_prompt, stream=f"rl/{state.step}")
            completions = run.generate(requests, run.sampling())
        with timed(seconds, "reward"):
            of_response = [problem for problem in problems for _ in range(config.samples_per_prompt)]
            responses = [run.response_text(completion) for completion in completions]
            rewards_B = score_on_all_ranks(
                partial(score, run.reward), responses, of_response, layout.rank, layout.world_size
            )
            advantages_B = ADVANTAGES[config.advantage](rewards_B, [problem.id for problem in of_response])
        with timed(seconds, "log_probs"):
            batch = _scored(run, completions, advantages_B)
        drift = drift_metrics(batch.old_log_probs_BT, batch.rollout_log_probs_BT, batch.mask_BT)  # type: ignore[arg-type]
        with timed(seconds, "update"):
            updates = _update(run, batch)
        state.problems_drawn += config.prompts_per_step
        state.weight_version += 1
        with timed(seconds, "sync"):
            push_weights(run.policy, run.engine, state.weight_version)
    metrics = {
        **_rollout_metrics(completions, rewards_B, of_response),
        **_update_metrics(updates),
        **{f"drift/{name}": value for name, value in drift.items()},
        **{f"seconds/{name}": value for name, value in seconds.items()},
        **{f"tokens_per_s/{phase}": drift["tokens"] / seconds[phase] for phase in ("rollout", "log_probs", "update")},
    }
    return metrics, _samples(run, of_response, completions, responses, rewards_B, advantages_B)


def _scored(run: Run, completions: Sequence[Completion], advantages_B: Tensor) -> TrainBatch:
    """The rollouts as one batch, with log-probs by the engine, by the policy before its update and by the reference."""
    config = run.recipe.rl
    batch = pad_batch(
        [completion.request.prompt_ids for completion in completions],
        [completion.token_ids for completion in completions],
        current().device,
    )
    old = run.policy.log_probs(batch, config.micro_batch_size)
    reference = None if run.reference is None else run.reference.log_probs(batch, config.micro_batch_size)
    return batch.with_rollout(
        advantages_B,
        old_log_probs_BT=old,
        rollout_log_probs_BT=on_targets(batch, [completion.log_probs for completion in completions]),
        reference_log_probs_BT=reference,
    )


def _update(run: Run, batch: TrainBatch) -> list[Update]:
    config = run.recipe.rl
    return [
        run.policy.update(
            part,
            run.objective,
            micro_batch_size=config.micro_batch_size,
            temperature=run.recipe.rollout.temperature,
            normalisation=config.objective.normalisation,
        )
        for part in batch.micro_batches(len(batch) // config.updates_per_step)
    ]


def _rollout_metrics(
    completions: Sequence[Completion], rewards_B: Tensor, problems: Sequence[Problem]
) -> dict[str, float]:
    count = len(completions)
    rewards_of: dict[str, set[float]] = {}
    for problem, reward in zip(problems, rewards_B.tolist(), strict=True):
        rewards_of.setdefault(problem.id, set()).add(reward)
    return {
        "reward/mean": rewards_B.mean().item(),
        "reward/std": rewards_B.std(correction=0).item(),
        "reward/uniform_groups_share": sum(len(rewards) == 1 for rewards in rewards_of.values()) / len(rewards_of),
        "response/tokens_mean": sum(len(completion.token_ids) for completion in completions) / count,
        "response/truncated_share": sum(completion.finish_reason == "length" for completion in completions) / count,
    }


def _update_metrics(updates: Sequence[Update]) -> dict[str, float]:
    """Means over the step's updates; the learning rate is the last one's."""
    count = len(updates)
    return {
        "policy/loss": sum(update.loss for update in updates) / count,
        "policy/grad_norm": sum(update.grad_norm for update in updates) / count,
        "lr": updates[-1].lr,
        **{name: sum(update.metrics[name] for update in updates) / count for name in updates[0].metrics},
    }


def _samples(
    run: Run,
    problems: Sequence[Problem],
    completions: Sequence[Completion],
    responses: Sequence[str],
    rewards_B: Tensor,
    advantages_B: Tensor,
) -> list[Sample]:
    """Rollouts spread evenly over the batch, so that they show several prompts."""
    wanted = min(run.recipe.observe.samples_per_step, len(completions))
    rows = [index * len(completions) // wanted for index in range(wanted)]
    return [
        Sample(
            problem_id=problems[row].id,
            sample=completions[row].request.sample,
            prompt=problems[row].prompt,
            response=responses[row],
            reward=rewards_B[row].item(),
            advantage=advantages_B[row].item(),
            tokens=len(completions[row].token_ids),
            finish_reason=completions[row].finish_reason,
            weight_version=completions[row].versions[0].version,
        )
        for row in rows
    ]
