"""A step's rollouts without an engine or a trainer: tokens, log-probs and rewards drawn from named generators."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from megarl.config.schema import Recipe
from megarl.data.problem import Problem
from megarl.loop.advantages import with_advantages
from megarl.loop.rollouts import Rollouts
from megarl.megatron.batch import TrainBatch, pad_batch
from megarl.rollout import Completion, Request, VersionSpan
from tests.unit.loop.parts import run_without_parts
from tests.unit.objectives.reference import uniform

GROUPS = "aaaabbbbcc"
LENGTHS = (3, 5, 2, 4, 7, 1, 6, 3, 4, 2)
PROMPT = (1, 2)
FAR = 12.0
"""A drift, in nats a token, by which every rule rejects: e^-12 is below the veto's 1e-4."""


class TabularCritic:
    """A value function without a network: of the tokens read so far alone, as a causal model's is."""

    def values(self, batch: TrainBatch, micro_batch_size: int) -> Tensor:
        return torch.sin(batch.tokens_BT.float().cumsum(dim=1))


def step(rewards: Sequence[float] | None = None) -> tuple[TrainBatch, Rollouts]:
    """Ten responses to three prompts; the engine's log-probs are the trainer's, bit for bit."""
    rows = range(len(GROUPS))
    completions = []
    for row in rows:
        tokens = tuple(3 + (row * 5 + t * 7) % 11 for t in range(LENGTHS[row]))
        request = Request(GROUPS[row], row, PROMPT, "rl/0")
        reason = "length" if row % 4 == 3 else "stop"
        completions.append(Completion(request, tokens, (0.0,) * len(tokens), reason, (VersionSpan(0, 0, len(tokens)),)))
    batch = pad_batch([PROMPT for _ in rows], [c.token_ids for c in completions], torch.device("cpu"))
    old = uniform(-3, -0.1, batch.mask_BT.shape, 1).float()
    batch = replace(
        batch,
        old_log_probs_BT=old,
        rollout_log_probs_BT=old.clone(),
        reference_log_probs_BT=old + uniform(-0.5, 0.5, old.shape, 2).float(),
    )
    rewards = uniform(0, 1, (len(GROUPS),), 3).tolist() if rewards is None else list(rewards)
    baselines = uniform(0, 1, (len(GROUPS),), 4).tolist()
    problems = [Problem(name, "", "") for name in GROUPS]
    return batch, Rollouts(problems, completions, [""] * len(rows), rewards, rewards, baselines)


def without(row: int, batch: TrainBatch, rollouts: Rollouts) -> tuple[TrainBatch, Rollouts]:
    """The step as if the response had not been drawn."""
    left = [index for index in range(len(batch)) if index != row]
    kept = Rollouts(baselines=[rollouts.baselines[index] for index in left])
    for index in left:
        kept.take(rollouts, slice(index, index + 1))
    tensors = {name: value[left] for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return replace(batch, **tensors), kept


def drifted(row: int, batch: TrainBatch) -> TrainBatch:
    """The batch in which the engine found every token of the response far likelier than the trainer does."""
    assert batch.rollout_log_probs_BT is not None
    rollout = batch.rollout_log_probs_BT.clone()
    rollout[row] += FAR
    return replace(batch, rollout_log_probs_BT=rollout)


def advantages_of(recipe: Recipe, batch: TrainBatch, rollouts: Rollouts) -> TrainBatch:
    """The batch as the policy's updates get it."""
    critic: Any = TabularCritic() if recipe.rl.advantage == "gae" else None
    return with_advantages(run_without_parts(recipe, critic=critic), batch, rollouts)[0]
