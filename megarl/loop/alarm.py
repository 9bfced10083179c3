"""The entropy alarm: collapse of exploration is the commonest way that a run dies."""

from statistics import fmean

from megarl.loop.run import Run

BASELINE_STEPS = 5


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
