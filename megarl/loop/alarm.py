"""What the user is told while a run goes wrong: exploration that collapses, steps that teach nothing."""

from collections.abc import Mapping
from statistics import fmean

from megarl.config.names import GROUP_RELATIVE
from megarl.config.training import RLConfig
from megarl.loop.run import Run

BASELINE_STEPS = 5
IDLE_STEPS = 10
"""Steps without a policy gradient after which the user is told."""


def entropy_has_collapsed(run: Run, entropy: float) -> bool:
    """Whether the policy's entropy fell below its share of the baseline, the mean of the run's first steps.

    Args:
        run: holds the baseline in its state, so that a resumed run keeps it.
        entropy: of the step that is over, nats a token.
    """
    share, baseline = run.recipe.rl.entropy.alarm_share, run.state.entropy_baseline
    if share is None:
        return False
    if len(baseline) < BASELINE_STEPS:
        baseline.append(entropy)
        return False
    return entropy < share * fmean(baseline)


def why_idle(config: RLConfig, metrics: Mapping[str, float]) -> str | None:
    """Why a step had no policy gradient and what to do about it, in words; None where it had one, or may have had.

    Args:
        config: the recipe's.
        metrics: of the step.
    """
    if metrics.get("drift/skipped_updates", 0) > 0:
        return (
            "drift was beyond a bound of drift.skip_update, see the warnings above: find its cause (docs/drift.md) or "
            "give a looser bound"
        )
    if metrics["response/untrained_share"] == 1:
        return (
            "no response had a token left to train on: see response/truncated_share and correction/kept_share, and "
            "raise rollout.max_new_tokens, turn rl.overlong.filter off or widen rl.correction"
        )
    if metrics.get("correction/kept_share") == 0:
        return (
            "the correction dropped every token: see drift/abs_mean and drift/tokens_without_log_prob, and widen the "
            "bands of rl.correction or mend the engine"
        )
    if config.advantage in GROUP_RELATIVE and metrics["reward/uniform_groups_share"] == 1:
        return (
            "every response to a prompt got the same reward: start from a better policy (sft.steps, model.init_from) "
            "or take easier, or harder, problems"
        )
    return None


def raise_clip(run: Run) -> bool:
    """Raises the objective's clip_high by its factor, up to its largest; nothing lowers it again.

    A wider upper clip lets rare tokens of positive advantage gain more, by which entropy rises (DAPO, 2503.14476,
    section 3.1). The value is part of the state, so that a resumed run has it too.

    Returns:
        Whether it rose: False once it is at its largest.
    """
    config, before = run.recipe.rl.entropy, run.state.clip_high
    assert before is not None and config.alarm_clip_max is not None
    run.state.clip_high = min(before * config.alarm_clip_factor, config.alarm_clip_max)
    return run.state.clip_high > before
