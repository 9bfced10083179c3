"""One step of reinforcement learning, as it reads in a paper: roll out, reward, compare, update, sync."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from megarl.config.errors import UserError
from megarl.config.refusal import in_words
from megarl.drift import drift_metrics
from megarl.drift.corrections import correction_metrics
from megarl.loop.critic import gae_targets, update_critic
from megarl.loop.policy_loss import build_correction, build_normalisation, build_policy_loss
from megarl.loop.rollouts import Rollouts, collect_rollouts
from megarl.loop.routing import with_routing
from megarl.loop.run import Run, timed
from megarl.loop.selection import with_selection
from megarl.megatron.batch import TrainBatch, on_targets, pad_batch
from megarl.megatron.micro_batches import micro_batch_size
from megarl.megatron.schedule import Update
from megarl.objectives import ADVANTAGES, Rewarded
from megarl.objectives.kl import ESTIMATORS
from megarl.objectives.masked import masked_log_ratio
from megarl.observe.samples import Sample
from megarl.platform.platform import current
from megarl.sync.in_process import push_weights


def rl_step(run: Run) -> tuple[dict[str, float], list[Sample]]:
    """One step: the state's next prompts, its weights before, one version more after. Collective.

    Returns:
        The step's metrics, and a few of its rollouts as text.
    """
    state = run.state
    seconds: dict[str, float] = {}
    with timed(seconds, "step"):
        rollouts = collect_rollouts(run, seconds)
        with timed(seconds, "log_probs"):
            batch, routing = _scored(run, rollouts)
        drift = _drift(batch) | routing
        batch, correction = with_advantages(run, batch, rollouts)
        with timed(seconds, "update"):
            critic_metrics = update_critic(run, batch)
            updates = _update(run, batch)
        state.problems_drawn += rollouts.problems_drawn
        state.weight_version += 1
        with timed(seconds, "sync"):
            push_weights(run.policy, run.engine, state.weight_version)
    metrics = {
        **_rollout_metrics(rollouts),
        "response/untrained_share": 1 - batch.mask_BT.any(dim=1).float().mean().item(),
        **_update_metrics(updates),
        **critic_metrics,
        **correction,
        "kl/coefficient": state.kl_coefficient,
        **({} if state.clip_high is None else {"policy/clip_high": state.clip_high}),
        **{f"drift/{name}": value for name, value in drift.items()},
        **{f"seconds/{name}": value for name, value in seconds.items()},
        "tokens_per_s/rollout": rollouts.tokens_generated / seconds["rollout"],
        **{f"tokens_per_s/{phase}": drift["tokens"] / seconds[phase] for phase in ("log_probs", "update")},
    }
    measured = metrics.get("kl/reference_full", metrics.get("kl/reference_k3"))
    state.kl_coefficient = steered(run, state.kl_coefficient, measured)
    return metrics, _samples(run, rollouts, batch)


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


def _scored(run: Run, rollouts: Rollouts) -> tuple[TrainBatch, dict[str, float]]:
    """The rollouts as one batch, with log-probs by the engine, by the policy before its update and by the reference.

    Returns:
        The batch, and how far engine and policy agree on their tokens' experts, where the engine tells.
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
    old_log_probs_BT, routing = run.policy.log_probs_and_routing(batch, micro_batch_size(config))
    scored = replace(
        batch,
        old_log_probs_BT=old_log_probs_BT,
        rollout_log_probs_BT=on_targets(batch, [completion.log_probs for completion in rollouts.completions]),
        reference_log_probs_BT=reference,
    )
    return scored, routing


def _drift(batch: TrainBatch) -> dict[str, float]:
    assert batch.old_log_probs_BT is not None and batch.rollout_log_probs_BT is not None
    return drift_metrics(batch.old_log_probs_BT, batch.rollout_log_probs_BT, batch.mask_BT)


def with_advantages(run: Run, batch: TrainBatch, rollouts: Rollouts) -> tuple[TrainBatch, dict[str, float]]:
    """The batch with each token's advantage, and without the responses that the recipe leaves out of the loss.

    Rejection comes first: a response that is not trained on enters no sibling's baseline. In decoupled mode the weights
    are formed here, once, on the whole batch. In bypass mode each update forms its own, and only what the policy as it
    is now rejects is known already.

    Returns:
        The batch, and the correction's metrics where it is formed here.

    Raises:
        UserError: rl.advantage=max_rl, and a reward is negative.
    """
    config = run.recipe.rl
    keep_BT = batch.mask_BT
    if config.overlong.filter:
        whole_B = torch.tensor([completion.finish_reason == "stop" for completion in rollouts.completions])
        keep_BT = keep_BT & whole_B.to(keep_BT.device)[:, None]
    valid_B = keep_BT.any(dim=1)
    metrics: dict[str, float] = {}
    if config.correction.mode != "none":
        assert batch.old_log_probs_BT is not None and batch.rollout_log_probs_BT is not None
        corrected = build_correction(config.correction)(batch.old_log_probs_BT, batch.rollout_log_probs_BT, keep_BT)
        valid_B = corrected.keep_BT.any(dim=1)
        if config.correction.mode == "decoupled":
            batch = replace(batch, correction_weights_BT=corrected.weights_BT, correction_keep_BT=corrected.keep_BT)
            sums = correction_metrics(corrected, keep_BT)
            metrics = {name: float(total) / float(count) for name, (total, count) in sums.items() if count > 0}
            if config.correction.normalise == "kept":
                keep_BT = corrected.keep_BT
    rewarded = Rewarded(
        rewards_B=rollouts.rewards_B.to(keep_BT.device),
        prompt_ids=[problem.id for problem in rollouts.problems],
        mask_BT=batch.mask_BT,
        valid_B=valid_B,
        token_penalties_BT=_penalties(run, batch),
        baselines_B=torch.tensor(rollouts.baselines, device=keep_BT.device) if rollouts.baselines else None,
        gamma=config.gamma,
    )
    if run.critic is not None:
        advantages_BT, old_values_BT, returns_BT = gae_targets(run, run.critic, rollouts, rewarded)
        batch = replace(batch, old_values_BT=old_values_BT, returns_BT=returns_BT)
    else:
        if config.advantage == "max_rl":
            _refuse_negative_rewards(run, rewarded)
        advantages_BT = ADVANTAGES[config.advantage](rewarded)
    return replace(batch, mask_BT=keep_BT, advantages_BT=advantages_BT), metrics


def _refuse_negative_rewards(run: Run, rewarded: Rewarded) -> None:
    """Ends the run, saved, where a reward is negative that max_rl would take for a share of successes."""
    negative_B = rewarded.valid_B & (rewarded.rewards_B < 0)
    if negative_B.any():
        row = int(negative_B.int().argmax())
        run.save()
        raise UserError(
            f"rl.advantage=max_rl takes no negative reward, and reward.name={in_words(run.recipe.reward.name)} gave "
            f"{rewarded.rewards_B[row].item():g} to a response to problem {rewarded.prompt_ids[row]}; let it give 0 or "
            "more, or take another rl.advantage in a new output_dir; this run's state was saved."
        )


def _penalties(run: Run, batch: TrainBatch) -> torch.Tensor | None:
    """beta * KL estimate of each token, for a KL that is part of the reward."""
    kl = run.recipe.rl.kl
    if kl.placement != "reward" or run.state.kl_coefficient == 0:
        return None
    if kl.estimator == "full":
        assert run.reference is not None
        exact_BT = run.policy.reference_kl(batch, run.reference, micro_batch_size(run.recipe.rl))
        return run.state.kl_coefficient * exact_BT
    assert batch.old_log_probs_BT is not None and batch.reference_log_probs_BT is not None
    log_ratio_BT = masked_log_ratio(batch.old_log_probs_BT, batch.reference_log_probs_BT, batch.mask_BT)
    return run.state.kl_coefficient * ESTIMATORS[kl.estimator](log_ratio_BT)


def _update(run: Run, batch: TrainBatch) -> list[Update]:
    config = run.recipe.rl
    loss = build_policy_loss(run.recipe, run.state.kl_coefficient, run.state.clip_high)
    if run.state.step < config.critic.warmup_steps:
        return []
    updates = []
    for index, part in enumerate(batch.parts(config.updates_per_step)):
        part, covariance = with_selection(run, part, index)
        update = run.policy.update(
            part,
            loss,
            micro_batch_size=micro_batch_size(config),
            temperature=run.recipe.rollout.temperature,
            normalisation=build_normalisation(run.recipe),
            reference=run.reference if "reference_kl_BT" in loss.needs else None,
        )
        updates.append(replace(update, metrics={**update.metrics, **covariance}))
    return updates


def _rollout_metrics(rollouts: Rollouts) -> dict[str, float]:
    count, rewards_B = len(rollouts.completions), rollouts.rewards_B
    return {
        "reward/mean": rewards_B.mean().item(),
        "reward/std": rewards_B.std(correction=0).item(),
        "reward/uniform_groups_share": rollouts.uniform_groups / rollouts.problems_drawn,
        "response/tokens_mean": sum(len(completion.token_ids) for completion in rollouts.completions) / count,
        "response/truncated_share": sum(c.finish_reason == "length" for c in rollouts.completions) / count,
        "rollout/problems_drawn": float(rollouts.problems_drawn),
    }


def _update_metrics(updates: Sequence[Update]) -> dict[str, float]:
    """Means over the step's updates that had a token to count; the learning rate is the last one's."""
    trained = [update for update in updates if update.tokens > 0]
    means = {
        "policy/loss": [update.loss for update in trained],
        "policy/grad_norm": [update.grad_norm for update in trained],
    }
    # not every update counts every metric, and what has no count has no mean
    for update in trained:
        for name, value in update.metrics.items():
            means.setdefault(name, []).append(value)
    return {
        **{name: sum(values) / len(values) for name, values in means.items() if values},
        "policy/empty_updates": float(len(updates) - len(trained)),
        **({"lr": updates[-1].lr} if updates else {}),
    }


def _samples(run: Run, rollouts: Rollouts, batch: TrainBatch) -> list[Sample]:
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
