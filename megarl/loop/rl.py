"""One step of reinforcement learning, as it reads in a paper: roll out, reward, compare, update, sync."""

import math
from dataclasses import replace

from megarl.config.schema import Recipe
from megarl.loop.advantages import with_advantages
from megarl.loop.auto_correction import chosen_correction, with_correction
from megarl.loop.critic import update_critic
from megarl.loop.divergence import count_nonfinite
from megarl.loop.drift import measured_drift
from megarl.loop.drift_bounds import heed_bounds, without_tokens
from megarl.loop.dump import dump_step
from megarl.loop.policy_loss import build_normalisation, build_policy_loss
from megarl.loop.report import rollout_metrics, samples, update_metrics
from megarl.loop.rollouts import Rollouts, collect_rollouts
from megarl.loop.routing import with_routing
from megarl.loop.run import Run, timed
from megarl.loop.selection import with_selection
from megarl.loop.staleness import staleness_metrics
from megarl.megatron.batch import TrainBatch, on_targets, pad_batch
from megarl.megatron.micro_batches import micro_batch_size
from megarl.megatron.schedule import Update
from megarl.observe.samples import Sample
from megarl.platform.platform import current
from megarl.rollout.engine import EngineError


def rl_step(run: Run) -> tuple[dict[str, float], list[Sample]]:
    """One step: the state's next prompts, its weights before, one version more after. Collective.

    Where the engine does not get the new weights any more, the step is whole all the same, and `run.engine_failure` is
    the reason.

    Returns:
        The step's metrics, and a few of its rollouts as text.
    """
    state = run.state
    seconds: dict[str, float] = {}
    with timed(seconds, "step"):
        rollouts = collect_rollouts(run, seconds)
        with timed(seconds, "log_probs"):
            batch, agreement = _scored(run, rollouts)
        with timed(seconds, "drift"):
            drift = measured_drift(run, batch, rollouts.completions) | agreement
        verdict = heed_bounds(run, drift)
        choice = chosen_correction(run, drift)
        recipe = with_correction(run.recipe, choice)
        staleness = _staleness(run, rollouts)
        generated_BT = batch.mask_BT
        batch, correction = with_advantages(run, batch, rollouts, recipe.rl)
        trained = without_tokens(batch) if verdict.skip else batch
        dump_step(run, rollouts, generated_BT, trained)
        with timed(seconds, "update"):
            critic_metrics = update_critic(run, trained)
            updates = _update(run, trained, recipe)
        if choice is not None:
            state.correction_level, state.correction_calm = int(choice.level), choice.calm
        state.problems_drawn += rollouts.problems_drawn
        state.weight_version += 1
        with timed(seconds, "sync"):
            run.engine_failure = _sync(run, seconds)
    metrics = {
        **rollout_metrics(rollouts),
        **staleness,
        "response/untrained_share": 1 - batch.mask_BT.any(dim=1).float().mean().item(),
        **update_metrics(updates),
        **critic_metrics,
        **correction,
        "kl/coefficient": state.kl_coefficient,
        **({} if state.clip_high is None else {"policy/clip_high": state.clip_high}),
        **{f"drift/{name}": value for name, value in drift.items()},
        **verdict.metrics,
        **({} if choice is None else {"drift/correction_level": float(choice.level)}),
        **run.engine_metrics(),
        **{f"seconds/{name}": value for name, value in seconds.items()},
        **({"tokens_per_s/rollout": rollouts.tokens_generated / seconds["rollout"]} if "rollout" in seconds else {}),
        **{f"tokens_per_s/{phase}": drift["tokens"] / seconds[phase] for phase in ("log_probs", "update")},
    }
    measured = metrics.get("kl/reference_full", metrics.get("kl/reference_k3"))
    state.kl_coefficient = steered(run, state.kl_coefficient, measured)
    return metrics, samples(run, rollouts, batch)


def _scored(run: Run, rollouts: Rollouts) -> tuple[TrainBatch, dict[str, float]]:
    """The rollouts as one batch, with log-probs by the engine, by the policy before its update and by the reference.

    Returns:
        The batch, and how far engine and policy agree: see `Policy.log_probs_and_agreement`.
    """
    config = run.recipe.rl
    batch = pad_batch(
        [completion.request.prompt_ids for completion in rollouts.completions],
        [completion.token_ids for completion in rollouts.completions],
        current().device,
    )
    if config.routing_replay != "none":
        routing_of = [completion.routing for completion in rollouts.completions]
        batch = with_routing(batch, routing_of, config.routing_replay)
    reference = None if run.reference is None else run.reference.log_probs(batch, micro_batch_size(config))
    old_log_probs_BT, agreement = run.policy.log_probs_and_agreement(batch, micro_batch_size(config))
    scored = replace(
        batch,
        old_log_probs_BT=old_log_probs_BT,
        rollout_log_probs_BT=on_targets(batch, [completion.log_probs for completion in rollouts.completions]),
        reference_log_probs_BT=reference,
    )
    return scored, agreement


def _staleness(run: Run, rollouts: Rollouts) -> dict[str, float]:
    """Ages of the step's tokens, where they may have any."""
    if run.ahead is None:
        return {}
    bound = run.recipe.rl.asynchrony.lookahead
    ages = staleness_metrics(rollouts.completions, run.state.weight_version, bound)
    return {**ages, "staleness/dropped": float(run.ahead.take_dropped())}


def _update(run: Run, batch: TrainBatch, recipe: Recipe) -> list[Update]:
    """The step's optimizer steps, on a part of the batch each; none while the critic alone warms up. Collective.

    Args:
        run: the run.
        batch: what is trained on.
        recipe: with the correction as it stands.
    """
    config = run.recipe.rl
    if run.state.step < config.critic.warmup_steps:
        return []
    loss = build_policy_loss(recipe, run.state.kl_coefficient, run.state.clip_high)
    updates = []
    for index, part in enumerate(batch.parts(config.updates_per_step)):
        part, covariance = with_selection(run, part, index)
        update = run.policy.update(
            part,
            loss,
            micro_batch_size=micro_batch_size(config),
            sampling=run.policy.sampling,
            normalisation=build_normalisation(run.recipe),
            reference=run.reference if "reference_kl_BT" in loss.needs else None,
        )
        count_nonfinite(run, update)
        updates.append(replace(update, metrics={**update.metrics, **covariance}))
    return updates


def _sync(run: Run, seconds: dict[str, float]) -> EngineError | None:
    """Gives the engine the weights, once it has ended what may not span the update. Collective.

    Returns:
        What the engine, which is gone for good, raised.
    """
    try:
        if run.ahead is not None:
            with timed(seconds, "generation_wait"):
                run.ahead.settle()
        run.sync.push(run.state.weight_version)
    except EngineError as error:
        return error
    return None


def steered(run: Run, coefficient: float, kl: float | None) -> float:
    """The KL coefficient for the next step (Ziegler et al. 2019, 1909.08593, section 2.2).

    It moves by the relative error of the KL against its target, at most a fifth either way, over `horizon` responses.
    """
    config = run.recipe.rl.kl
    if config.target is None or kl is None:
        return coefficient
    error = min(max(kl / config.target - 1, -0.2), 0.2)
    # as an exponential, which no batch, however large against the horizon, makes negative
    return coefficient * math.exp(error * run.recipe.rl.rollouts_per_step / config.horizon)
