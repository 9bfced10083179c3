"""What `megarl drift budget` does: one set of responses, scored in every way that lies between trainer and engine.

From the trainer as the recipe has it to the engine as the recipe has it, one switch after another: without FP8, in
fp32, at the weights that the engine had, by the engine's code in fp32, in its own precision, with its quantisation.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from megarl.config.refusal import refusal
from megarl.config.schema import Recipe
from megarl.drift.budget import Budget, Part, part
from megarl.loop.alarm import why_idle
from megarl.loop.budget_engine import engine_floor, engine_parts
from megarl.loop.budget_trainer import FP32, Answers, Trainer, trainer_floors, trainer_parts
from megarl.loop.engines import running_servers
from megarl.loop.journal import Journal
from megarl.loop.rl import rl_step
from megarl.loop.run import Run, build_run
from megarl.loop.start import begin_reference, start
from megarl.loop.stop import StopFlag
from megarl.megatron.policy import FrozenModel
from megarl.megatron.world import join_world, leave_world
from megarl.rollout.types import Request

_STREAM = "drift-budget"


def budget(recipe: Recipe, responses: int, updates: int) -> Budget:
    """Measures every part of the recipe's drift. Nothing is left behind in its folder.

    Args:
        recipe: its model, precision, engine and training.
        responses: to generate, one a training prompt.
        updates: RL steps that the trainer is ahead of the engine's weights.

    Raises:
        RecipeError: more than one process is asked for, there is no drift to decompose, or no update to make.
        UserError: a running server is not there or has other settings.
    """
    if recipe.parallel.world_size > 1:
        reason = "is more than drift budget runs"
        raise refusal("parallel.world_size", recipe.parallel.world_size, reason, "set it to 1")
    if recipe.precision.batch_invariant:
        reason = "leaves no drift but that of stale weights"
        raise refusal("precision.batch_invariant", True, reason, "set it to false to see what it takes away")
    if recipe.rl.steps == 0 and updates > 0:
        reason = f"has no updates to make, and --updates={updates} asks for some"
        raise refusal("rl.steps", 0, reason, "set it above 0, or give --updates=0")
    rl = replace(recipe.rl, steps=max(updates, recipe.rl.steps or _fewest_steps(recipe)))
    # bounds that end a run or skip its updates would leave nothing to decompose
    drift = replace(recipe.drift, warn={}, skip_update={}, stop={})
    layout = join_world(recipe.parallel, recipe.seed, recipe.precision.fp8.alignment)
    try:
        with running_servers(recipe, "asked"), tempfile.TemporaryDirectory(prefix="megarl-budget-") as folder:
            own = replace(
                recipe, output_dir=folder, resume="auto", sft=replace(recipe.sft, steps=0), rl=rl, drift=drift
            )
            run = build_run(own, layout, Journal(own, is_main=False), StopFlag())
            try:
                generated = _generated(run, responses, updates)
            finally:
                # servers with other settings may want the memory of these
                run.close()
            return _decomposed(run, generated)
    finally:
        leave_world()


def _fewest_steps(recipe: Recipe) -> int:
    """That the recipe's schedules fit in: an optimizer is built also where none of them is made."""
    critic = recipe.rl.critic
    return critic.warmup_steps + max(recipe.rl.optimizer.warmup_steps, critic.optimizer.warmup_steps) + 1


@dataclass(frozen=True)
class _Generated:
    """What the run's own engine gave, and the weights before and behind the updates.

    Attributes:
        requests: that the engine was given.
        answers: that it gave.
        engine_floor: of the engine.
        older: the weights that it has.
        newer: the trainer's.
        updates: between them.
        idle: why one of the updates had nothing to learn from, each that had not.
    """

    requests: Sequence[Request]
    answers: Answers
    engine_floor: Part
    older: Mapping[str, Tensor]
    newer: Mapping[str, Tensor]
    updates: int
    idle: Sequence[str]

    @property
    def is_stale(self) -> bool:
        """Whether the updates changed a weight."""
        return any(not torch.equal(tensor, self.newer[name]) for name, tensor in self.older.items())


def _generated(run: Run, responses: int, updates: int) -> _Generated:
    start(run)
    older = _copied(run.policy)
    run.sync.push(run.state.weight_version)
    assert run.engine is not None
    requests = run.requests([run.source.training(number) for number in range(responses)], 1, _STREAM)
    answers = Answers.of(run.engine.generate(requests, run.sampling()))
    floor = engine_floor(run.engine, answers, run)
    idle: list[str] = []
    if updates:
        begin_reference(run)
        for _ in range(updates):
            metrics, _ = rl_step(run)
            run.state.step += 1
            run.heed_loss()
            reason = _critic_alone(run) or why_idle(run.recipe.rl, metrics)
            idle += [] if reason is None else [reason]
    newer = _copied(run.policy) if updates else older
    return _Generated(requests, answers, floor, older, newer, updates, idle)


def _critic_alone(run: Run) -> str | None:
    """Why the step before trained no policy, where its critic warms up."""
    steps = run.recipe.rl.critic.warmup_steps
    return f"the critic alone trained, as rl.critic.warmup_steps={steps} says" if run.state.step <= steps else None


def _decomposed(run: Run, given: _Generated) -> Budget:
    answers, updates, own = given.answers, given.updates, run.recipe.precision
    rows_N = answers.rows_N
    ahead, behind = (
        Trainer(run.recipe, run.layout, run.policy.vocab_size, weights.__getitem__)
        for weights in (given.newer, given.older)
    )
    own_N = ahead.log_probs(answers, own)
    clean_N = own_N if own == FP32 else ahead.log_probs(answers, FP32)
    parts, absent = list(trainer_parts(ahead, answers, own_N, clean_N)), []
    if given.is_stale:
        stale_N = clean_N - behind.log_probs(answers, FP32)
        idle = f", {len(given.idle)} of which had nothing to learn from" if given.idle else ""
        parts.append(part("staleness", f"weights {_counted(updates)} apart{idle}, both in fp32", stale_N, rows_N))
    elif updates:
        reason = given.idle[-1] if given.idle else "every gradient was 0"
        absent.append(f"staleness: {_counted(updates)} changed no weight, as {reason}")
    else:
        absent.append("staleness: the engine has the newest weights; --updates N tells what N updates would add")
    parts += engine_parts(run, behind, given.requests, answers)
    if run.recipe.engine.urls:
        absent.append("the engine's precision and quantisation, which are in the kernel: engine.urls runs already")
    elif not any(one.name.startswith(("precision", "quantisation")) for one in parts):
        absent.append("precision and quantisation: both sides compute in fp32")
    words = "trainer less engine, as the recipe has them" + (f", {_counted(updates)} apart" if given.is_stale else "")
    return Budget(
        part("total", words, own_N - answers.engine_N, rows_N),
        tuple(parts),
        (*trainer_floors(ahead, answers, own_N), given.engine_floor),
        tuple(absent),
    )


def _counted(updates: int) -> str:
    return "1 update" if updates == 1 else f"{updates} updates"


def _copied(policy: FrozenModel) -> dict[str, Tensor]:
    """The weights as they are now."""
    return {name: tensor.clone() for name, tensor in policy.export()}
