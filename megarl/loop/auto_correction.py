"""The correction as it stands: what the recipe says, or what drift.correction=auto picks at each step."""

from collections.abc import Mapping
from dataclasses import replace

from megarl.config.objective import CorrectionConfig
from megarl.config.schema import Recipe
from megarl.drift.auto import Choice, Level, choose
from megarl.loop.run import Run

CORRECTIONS = {
    # tokens without a log-prob by the engine are dropped at every level
    Level.NONE: CorrectionConfig(mode="decoupled"),
    Level.TIS: CorrectionConfig(mode="decoupled", weighting="tis"),
    Level.ICEPOP: CorrectionConfig(mode="decoupled", weighting="icepop", veto=1e-4),
    Level.GEOMETRIC: CorrectionConfig(mode="decoupled", weighting="icepop", veto=1e-4, reject_geometric=[1 / 1.1, 1.1]),
}


def with_correction(recipe: Recipe, choice: Choice | None) -> Recipe:
    """The recipe with the chosen correction in its place; as it is where there is no choice."""
    if choice is None:
        return recipe
    return replace(recipe, rl=replace(recipe.rl, correction=CORRECTIONS[choice.level]))


def chosen_correction(run: Run, measured: Mapping[str, float]) -> Choice | None:
    """The step's correction under drift.correction=auto, of which a change is told; None without it.

    Args:
        run: holds the choice of the step before in its state, which this leaves as it is.
        measured: the step's drift, the same on every rank.
    """
    if run.recipe.drift.correction != "auto":
        return None
    before = Level(run.state.correction_level)
    choice = choose(before, run.state.correction_calm, measured)
    if choice.level != before:
        name, step = choice.level.name.lower(), run.state.step + 1
        run.journal.note(f"drift.correction=auto takes {name} from step {step} on: {choice.why}")
    return choice
