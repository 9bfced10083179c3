"""Which of a step's responses are trained on, under what weights, and each token's advantage."""

from dataclasses import replace

import torch
from torch import Tensor

from megarl.config.errors import UserError
from megarl.config.refusal import in_words
from megarl.config.training import RLConfig
from megarl.drift.corrections import correction_metrics
from megarl.loop.critic import gae_targets
from megarl.loop.policy_loss import build_correction
from megarl.loop.rollouts import Rollouts
from megarl.loop.run import Run
from megarl.megatron.batch import TrainBatch
from megarl.megatron.micro_batches import micro_batch_size
from megarl.objectives import ADVANTAGES, Rewarded
from megarl.objectives.kl import ESTIMATORS
from megarl.objectives.masked import masked_log_ratio


def with_advantages(
    run: Run, batch: TrainBatch, rollouts: Rollouts, config: RLConfig | None = None
) -> tuple[TrainBatch, dict[str, float]]:
    """The batch with each token's advantage, and without the responses that the recipe leaves out of the loss.

    Rejection comes first: a response that is not trained on enters no sibling's baseline. Collective.

    Args:
        run: the run.
        batch: the step's rollouts, scored.
        rollouts: the same, with their rewards.
        config: with the correction as it stands; None for the recipe's own.

    Returns:
        The batch, and the correction's metrics where it is formed here.

    Raises:
        UserError: rl.advantage=max_rl, and a reward is negative.
    """
    config = run.recipe.rl if config is None else config
    generated_BT, penalties_BT = batch.mask_BT, _penalties(run, batch)
    if config.overlong.filter:
        whole_B = torch.tensor([completion.finish_reason == "stop" for completion in rollouts.completions])
        batch = replace(batch, mask_BT=generated_BT & whole_B.to(generated_BT.device)[:, None])
    batch, valid_B, metrics = _corrected(config, batch)
    rewarded = Rewarded(
        rewards_B=rollouts.rewards_B.to(valid_B.device),
        prompt_ids=[problem.id for problem in rollouts.problems],
        # a dropped token was generated all the same: its penalty is part of its response's return
        mask_BT=generated_BT,
        valid_B=valid_B,
        token_penalties_BT=penalties_BT,
        baselines_B=torch.tensor(rollouts.baselines, device=valid_B.device) if rollouts.baselines else None,
        gamma=config.gamma,
    )
    if run.critic is not None:
        advantages_BT, old_values_BT, returns_BT = gae_targets(run, run.critic, rollouts, rewarded)
        return replace(batch, advantages_BT=advantages_BT, old_values_BT=old_values_BT, returns_BT=returns_BT), metrics
    if config.advantage == "max_rl":
        _refuse_negative_rewards(run, rewarded)
    return replace(batch, advantages_BT=ADVANTAGES[config.advantage](rewarded)), metrics


def _corrected(config: RLConfig, batch: TrainBatch) -> tuple[TrainBatch, Tensor, dict[str, float]]:
    """The batch under the recipe's correction, which responses it leaves a token (bool [B]), and its metrics.

    In decoupled mode the weights are formed here, once, on the whole batch. In bypass mode each update forms its own,
    and only what the policy as it is now rejects is known already.
    """
    correction = config.correction
    if correction.mode == "none":
        return batch, batch.mask_BT.any(dim=1), {}
    assert batch.old_log_probs_BT is not None and batch.rollout_log_probs_BT is not None
    corrected = build_correction(correction)(batch.old_log_probs_BT, batch.rollout_log_probs_BT, batch.mask_BT)
    valid_B = corrected.keep_BT.any(dim=1)
    if correction.mode == "bypass":
        return batch, valid_B, {}
    sums = correction_metrics(corrected, batch.mask_BT)
    batch = replace(
        batch,
        mask_BT=corrected.keep_BT if correction.normalise == "kept" else batch.mask_BT,
        correction_weights_BT=corrected.weights_BT,
        correction_keep_BT=corrected.keep_BT,
    )
    return batch, valid_B, {name: float(total) / float(count) for name, (total, count) in sums.items() if count > 0}


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


def _penalties(run: Run, batch: TrainBatch) -> Tensor | None:
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
