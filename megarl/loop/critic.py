"""The critic's part of a step: values, advantages by GAE, and its own updates."""

from torch import Tensor

from megarl.loop.divergence import count_nonfinite
from megarl.loop.rollouts import Rollouts
from megarl.loop.run import Run
from megarl.megatron.batch import TrainBatch, pad_batch
from megarl.megatron.critic import Critic
from megarl.megatron.micro_batches import micro_batch_size
from megarl.megatron.schedule import scale_metrics
from megarl.objectives import Rewarded, gae
from megarl.objectives.advantages.reinforce_pp import at_last_token, whiten


def gae_targets(run: Run, critic: Critic, rollouts: Rollouts, rewarded: Rewarded) -> tuple[Tensor, Tensor, Tensor]:
    """Whitened advantages, old values and returns of a step, each [B, T]. Collective.

    The critic reads one token more than the policy's batch has: the state that a truncated response was cut in has a
    value too.
    """
    config = run.recipe.rl
    extended = pad_batch(
        [completion.request.prompt_ids for completion in rollouts.completions],
        [(*completion.token_ids, 0) for completion in rollouts.completions],
        rewarded.mask_BT.device,
    )
    values_BS = critic.values(extended, micro_batch_size(config))
    mask_BT = rewarded.mask_BT
    # position of the last token of the extended response: the state after the real one
    after_B = extended.mask_BT.shape[1] - 1 - extended.mask_BT.flip(1).int().argmax(dim=1)
    truncated_B = after_B.new_tensor([completion.finish_reason == "length" for completion in rollouts.completions])
    final_values_B = values_BS.gather(1, after_B[:, None])[:, 0] * truncated_B
    token_rewards_BT = at_last_token(rewarded.rewards_B, mask_BT) - rewarded.masked_penalties()
    values_BT = values_BS[:, : mask_BT.shape[1]]
    estimate = gae(token_rewards_BT, values_BT, mask_BT, final_values_B, config.gamma, config.critic.gae_lambda)
    trained_BT = mask_BT & rewarded.valid_B[:, None]
    return whiten(estimate.advantages_BT.double(), trained_BT).float(), values_BT, estimate.returns_BT


def update_critic(run: Run, batch: TrainBatch) -> dict[str, float]:
    """The critic's updates on a step's batch, and their metrics; nothing where there is no critic. Collective."""
    if run.critic is None:
        return {}
    config = run.recipe.rl
    updates = [
        run.critic.update(part, micro_batch_size=micro_batch_size(config), clip=config.critic.clip_value)
        for part in batch.parts(config.updates_per_step)
    ]
    for update in updates:
        count_nonfinite(run, update, "critic")
    trained = [update for update in updates if update.tokens > 0]
    metrics = {"critic/empty_updates": float(len(updates) - len(trained)), "critic/lr": updates[-1].lr}
    if trained:
        metrics["critic/nonfinite_updates"] = float(sum(update.nonfinite for update in trained))
    if finite := [update for update in trained if not update.nonfinite]:
        last = finite[-1]
        norm = {} if last.skipped else {"critic/grad_norm": last.grad_norm}
        # its experts are its own, beside the policy's under the same names
        own = {name.replace("moe/", "critic/moe_"): value for name, value in last.metrics.items()}
        metrics |= {"critic/loss": last.loss, **norm, **scale_metrics("critic", trained), **own}
    return metrics
