"""What a run does where drift is beyond a bound of the recipe: it says so, skips the step's update, or ends."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from megarl.config.errors import UserError
from megarl.drift.bounds import crossings
from megarl.loop.run import Run
from megarl.megatron.batch import TrainBatch


class DriftError(UserError):
    """Drift between trainer and engine is beyond a bound that ends the run."""


@dataclass(frozen=True)
class Verdict:
    """Attributes: skip: whether the step updates nothing. metrics: drift/bounds_crossed, drift/skipped_updates."""

    skip: bool
    metrics: dict[str, float]


def heed_bounds(run: Run, measured: Mapping[str, float]) -> Verdict:
    """Compares a step's drift with the recipe's bounds. Collective where one ends the run.

    A crossing is told once, and anew after a step without it.

    Args:
        run: the run, before the step has changed anything.
        measured: the same on every rank, names without `drift/`.

    Raises:
        DriftError: a bound of drift.stop is crossed; the state before this step was saved.
    """
    config, step = run.recipe.drift, run.state.step + 1
    bounds_of = {"warn": config.warn, "skip_update": config.skip_update, "stop": config.stop}
    crossed_of = {action: crossings(bounds, measured) for action, bounds in bounds_of.items()}
    if crossed_of["stop"]:
        first = crossed_of["stop"][0]
        run.save()
        raise DriftError(
            f"at step {step} drift/{first}, the bound of drift.stop[{first.name}]; find the cause (docs/drift.md) or "
            "give a looser bound: the state before this step was saved, and the same command continues from it."
        )
    said = {}
    for name in bounds_of["skip_update"].keys() | bounds_of["warn"].keys() | bounds_of["stop"].keys():
        if name not in measured:
            said[name] = f"warning: drift/{name} has a bound, and was not measured at step {step}"
    for action, consequence in (("warn", ""), ("skip_update", ": its update is skipped")):
        for crossing in crossed_of[action]:
            bound = f"the bound of drift.{action}[{crossing.name}]"
            said[f"{action} {crossing.name}"] = f"warning: at step {step} drift/{crossing}, {bound}{consequence}"
    for key in sorted(said.keys() - run.told_of_drift):
        run.journal.note(said[key])
    run.told_of_drift = set(said)
    skip = bool(crossed_of["skip_update"])
    metrics = {}
    if any(bounds_of.values()):
        metrics["drift/bounds_crossed"] = float(sum(map(len, crossed_of.values())))
    if config.skip_update:
        metrics["drift/skipped_updates"] = float(run.recipe.rl.updates_per_step if skip else 0)
    return Verdict(skip, metrics)


def without_tokens(batch: TrainBatch) -> TrainBatch:
    """The batch with no token to train on, on which no optimizer steps, on any rank."""
    return replace(batch, mask_BT=torch.zeros_like(batch.mask_BT))
