"""A step in numbers and in words: its metrics, and a few of its rollouts as text."""

from collections.abc import Sequence

import torch

from megarl.loop.rollouts import Rollouts
from megarl.loop.run import Run
from megarl.megatron.batch import TrainBatch
from megarl.megatron.schedule import Update, scale_metrics
from megarl.observe.samples import Sample


def rollout_metrics(rollouts: Rollouts) -> dict[str, float]:
    """Rewards and lengths of the step's responses."""
    count, rewards_B = len(rollouts.completions), rollouts.rewards_B
    return {
        "reward/mean": rewards_B.mean().item(),
        "reward/std": rewards_B.std(correction=0).item(),
        "reward/uniform_groups_share": rollouts.uniform_groups / rollouts.problems_drawn,
        "response/tokens_mean": sum(len(completion.token_ids) for completion in rollouts.completions) / count,
        "response/truncated_share": sum(c.finish_reason == "length" for c in rollouts.completions) / count,
        "rollout/problems_drawn": float(rollouts.problems_drawn),
    }


def update_metrics(updates: Sequence[Update]) -> dict[str, float]:
    """Means over the step's updates that had a token to count; the learning rate is the last one's."""
    trained = [update for update in updates if update.tokens > 0]
    means = {
        "policy/loss": [update.loss for update in trained if not update.nonfinite],
        "policy/grad_norm": [update.grad_norm for update in trained if not update.skipped],
    }
    # not every update counts every metric, and what has no count has no mean
    for update in trained:
        for name, value in update.metrics.items():
            means.setdefault(name, []).append(value)
    return {
        **{name: sum(values) / len(values) for name, values in means.items() if values},
        "policy/empty_updates": float(len(updates) - len(trained)),
        **({"policy/nonfinite_updates": float(sum(each.nonfinite for each in trained))} if trained else {}),
        **scale_metrics("policy", trained),
        **({"lr": updates[-1].lr} if updates else {}),
    }


def samples(run: Run, rollouts: Rollouts, batch: TrainBatch) -> list[Sample]:
    """Rollouts spread evenly over the batch, so that they show several prompts."""
    assert batch.advantages_BT is not None
    wanted = min(run.recipe.observe.samples_per_step, len(rollouts.completions))
    rows = [index * len(rollouts.completions) // wanted for index in range(wanted)]
    tokens_B = batch.mask_BT.sum(dim=1).clamp(min=1)
    advantages_B = torch.where(batch.mask_BT, batch.advantages_BT, 0.0).sum(dim=1) / tokens_B
    return [
        Sample(
            problem_id=rollouts.problems[row].id,
            sample=rollouts.completions[row].request.sample,
            prompt=rollouts.problems[row].prompt,
            response=rollouts.texts[row],
            reward=rollouts.rewards[row],
            advantage=advantages_B[row].item(),
            tokens=len(rollouts.completions[row].token_ids),
            finish_reason=rollouts.completions[row].finish_reason,
            weight_version=next((span.version for span in rollouts.completions[row].versions), None),
        )
        for row in rows
    ]
