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
