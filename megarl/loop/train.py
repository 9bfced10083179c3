"""A whole run on one process of the trainer: warm start, evaluation, reinforcement learning, evaluation."""

import math
from pathlib import Path

import torch.distributed as dist

from megarl.checkpoint.hf import export_hf
from megarl.config.advice import warnings_of
from megarl.config.errors import UserError
from megarl.config.schema import Recipe
from megarl.loop.ahead import Ahead
from megarl.loop.alarm import BASELINE_STEPS, IDLE_STEPS, entropy_has_collapsed, raise_clip, why_idle
from megarl.loop.engines import await_running_servers, running_servers
from megarl.loop.evaluation import evaluate
from megarl.loop.folder import claim_folder, writing_to
from megarl.loop.journal import Journal
from megarl.loop.rl import rl_step
from megarl.loop.run import Run, build_run
from megarl.loop.sft import sft_step
from megarl.loop.software import facts, note_other_engine
from megarl.loop.start import begin_phase, begin_reference, start
from megarl.loop.stop import StopFlag, Stopped
from megarl.loop.watchdog import WATCHDOG
from megarl.megatron.models import FAMILIES
from megarl.megatron.world import Layout, join_world, leave_world
from megarl.observe.files import write_json_atomic
from megarl.observe.summary import write_summary
from megarl.rollout.engine import WeightsError

EVALUATIONS_FILE = "evaluations.json"
FINAL_MODEL = "model"


def train(recipe: Recipe, stop: StopFlag) -> None:
    """Runs the recipe to its end, or on from its newest checkpoint. Collective: every process calls it.

    Raises:
        Stopped: a signal ended it; the state was saved.
        RunFolderError: the folder is in use, or takes no more.
        UserError: servers of `engine.urls` are not there, or are others than the recipe needs.
    """
    layout = join_world(recipe.parallel, recipe.seed, recipe.precision.fp8.alignment)
    # every rank has looked at the folder by now; what is claimed before could look to a late one like another's run
    dist.barrier()
    lock = claim_folder(recipe, facts()) if layout.is_main else None
    _watch(recipe, layout)
    try:
        with Journal(recipe, is_main=layout.is_main) as journal:
            run = build_run(recipe, layout, journal, stop)
            try:
                await_running_servers(recipe, run.engine, layout.world_size)
                start(run)
                stop.defer(recipe.checkpoint.stop_grace_s)
                _run_phases(run)
            finally:
                run.close()
        if layout.is_main:
            with writing_to(recipe.output_dir, "the summary"):
                write_summary(run.folder)
            names = "picture summary.png, rollouts samples.jsonl, policy model/"
            print(f"in {run.folder}: {names}")
    except Stopped:
        leave_world()
        raise
    finally:
        WATCHDOG.disarm()
    leave_world()
    if lock is not None:
        lock.close()


def _watch(recipe: Recipe, layout: Layout) -> None:
    """Watches this rank's phases. Collective: the main rank comes first."""
    folder, limit_s = Path(recipe.output_dir), recipe.faults.phase_timeout_s
    for turn in (True, False):
        if layout.is_main == turn:
            with writing_to(recipe.output_dir, "the watchdog's file"):
                WATCHDOG.arm(folder, layout.rank, limit_s)
        dist.barrier()


def _run_phases(run: Run) -> None:
    run.journal.note(_introduction(run))
    for warning in warnings_of(run.recipe):
        run.journal.note(f"warning: {warning}")
    if run.state.phase == "done":
        run.journal.note(f"the run in {run.folder} is finished; give another output_dir to train anew")
    if run.state.phase == "sft":
        _warm_start(run)
    if run.state.phase == "rl":
        _reinforce(run)


def _introduction(run: Run) -> str:
    """What is trained, on what, and where it goes: one line."""
    recipe, parallel = run.recipe, run.recipe.parallel
    shapes = FAMILIES[recipe.model.family].tensor_shapes(recipe.model, run.policy.vocab_size)
    parameters = sum(math.prod(shape) for _, shape, _ in shapes)
    sizes = {name: getattr(parallel, name) for name in ("tensor", "pipeline", "context", "data")}
    layout = " x ".join(f"{name} {size}" for name, size in sizes.items())
    return f"{recipe.name}: {recipe.model.family} of {parameters:,} parameters, {layout}, output in {run.folder}"


def _warm_start(run: Run) -> None:
    config, state = run.recipe.sft, run.state
    run.journal.begin("sft", config.steps, state.step)
    while state.step < config.steps:
        run.heed_stop()
        metrics = sft_step(run)
        state.step += 1
        run.journal.step("sft", state.step, metrics)
        every = run.recipe.checkpoint.sft_every
        if every and state.step % every == 0 and state.step < config.steps:
            run.save(wait=False)
    state.phase, state.step = "rl", 0
    begin_phase(run)
    run.save(wait=False)


def _reinforce(run: Run) -> None:
    config, state = run.recipe.rl, run.state
    begin_reference(run)
    _first_push(run)
    note_other_engine(run)
    _evaluate_once(run, "before")
    if config.asynchrony.mode != "sync":
        run.ahead = Ahead(run)
    run.journal.begin("rl", config.steps, state.step)
    idle = 0
    while state.step < config.steps:
        run.heed_stop()
        metrics, samples = rl_step(run)
        state.step += 1
        run.journal.step("rl", state.step, metrics, samples)
        reason = why_idle(config, metrics)
        idle = 0 if reason is None else idle + 1
        if idle == IDLE_STEPS:
            run.journal.note(f"for {idle} steps there was nothing to learn from; in the last of them {reason}")
        entropy = metrics.get("policy/entropy")
        if entropy is not None and entropy_has_collapsed(run, entropy):
            _raise_alarm(run, entropy)
        if run.engine_failure is not None:
            run.end_without_engine()
            raise run.engine_failure
        every = run.recipe.checkpoint.every
        if every and state.step % every == 0 and state.step < config.steps:
            run.save(wait=False, metrics=metrics)
    if run.ahead is not None:
        run.ahead.finish()
        run.ahead = None
    _evaluate_once(run, "after")
    with writing_to(run.recipe.output_dir, "the final policy"):
        export_hf(run.policy, run.folder / FINAL_MODEL, run.tokenizer)
    state.phase, state.step = "done", 0
    run.save()


def _first_push(run: Run) -> None:
    """Later on it is no mistake of the user's: what took the weights once is the right server.

    Raises:
        UserError: servers of `engine.urls` do not take them; the state was saved.
    """
    try:
        with running_servers(run.recipe, "given the weights", WeightsError):
            run.sync.push(run.state.weight_version)
    except UserError:
        run.end_without_engine()
        raise


def _raise_alarm(run: Run, entropy: float) -> None:
    """Tells the user that exploration is over, raises the clip, or ends the run with a checkpoint of this step.

    Raises:
        UserError: rl.entropy.alarm_action=stop.
    """
    config = run.recipe.rl.entropy
    message = (
        f"the policy's entropy fell to {entropy:.4g} nats a token at step {run.state.step}, below "
        f"rl.entropy.alarm_share={config.alarm_share:g} of its mean over the first {BASELINE_STEPS} steps"
    )
    if config.alarm_action == "stop":
        run.save()
        raise UserError(f"{message}; raise rl.objective.clip_high or rl.entropy.coefficient, or stop here.")
    if config.alarm_action == "raise_clip" and raise_clip(run):
        run.journal.note(f"{message}; rl.objective.clip_high is raised to {run.state.clip_high:.4g}")
        return
    if config.alarm_action == "raise_clip":
        message += f", and rl.objective.clip_high is at rl.entropy.alarm_clip_max={config.alarm_clip_max:g}"
    if not run.warned_of_entropy:
        run.warned_of_entropy = True
        run.journal.note(f"warning: {message}")


def _evaluate_once(run: Run, occasion: str) -> None:
    """Evaluates unless the state holds the result already; the file is written from the state alone."""
    state = run.state
    if run.recipe.evaluate.samples_per_prompt > 0 and occasion not in state.evaluations:
        run.journal.note(f"evaluating {occasion} RL on {run.recipe.data.eval_prompts} prompts")
        state.evaluations[occasion] = evaluate(run)
    if run.layout.is_main:
        with writing_to(run.recipe.output_dir, EVALUATIONS_FILE):
            write_json_atomic(run.folder / EVALUATIONS_FILE, state.evaluations)
