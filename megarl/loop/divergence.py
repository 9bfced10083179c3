"""What a run does about updates without a finite loss or gradient: skip, count, stop; and it saves none of them."""

from megarl.config.errors import DivergedError
from megarl.loop.run import Run
from megarl.megatron.schedule import Update


def count_nonfinite(run: Run, update: Update, model: str = "policy") -> None:
    """Counts an update that was skipped as its numbers are not finite; a good one sets the count back.

    Args:
        run: its state holds the count, so that a resumed run goes on counting.
        update: of the model.
        model: its name.

    Raises:
        DivergedError: `faults.nonfinite_updates` of them came in a row. On every rank, and nothing was saved since.
        RunFolderError: a save in the background failed.
    """
    counts, limit = run.state.nonfinite_updates, run.recipe.faults.nonfinite_updates
    if update.tokens == 0:
        return
    if not update.nonfinite:
        counts.pop(model, None)
        return
    counts[model] = counts.get(model, 0) + 1
    what = f"step {run.state.step + 1}: the loss or gradient of an update of the {model} is not finite (loss "
    what += f"{update.loss:g})"
    if counts[model] >= limit:
        # a save that goes on in the background is of weights from before these updates: it is the newest to go on from
        run.saver.finish()
        raise DivergedError(
            f"{what}, as that of faults.nonfinite_updates={limit} updates in a row; the checkpoints before it are "
            "finite: go on from the newest, or start anew with a lower learning rate."
        )
    run.journal.note(f"warning: {what}; it was skipped, {counts[model]} in a row")
