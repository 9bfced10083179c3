"""Metrics of a run: metrics.jsonl always, TensorBoard and Weights & Biases where asked for."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from megarl.observe.files import JsonlFile, nulled
from megarl.observe.mirrors import Mirror, TensorBoardMirror, WandbMirror

METRICS_FILE = "metrics.jsonl"
PREFIXES_OF_THE_DAY = ("seconds/", "tokens_per_s/", "engine/", "sync/", "drift/replica_")
"""Metrics of the clock, of what died and was started again, and of which server happened to be free."""
_OWN_KEYS = ("phase", "step", "nonfinite")


def reproducible(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl without what depends on the clock, or on servers that died.

    The rest of it is a function of the recipe, the software and the hardware: a resumed run and an
    uninterrupted one must have it alike.
    """
    kept = {name: value for name, value in line.items() if not name.startswith(PREFIXES_OF_THE_DAY)}
    lost = [name for name in kept.pop("nonfinite", []) if not name.startswith(PREFIXES_OF_THE_DAY)]
    return {**kept, "nonfinite": lost} if lost else kept


class MetricsWriter:
    """Appends one line a step to metrics.jsonl and mirrors it. One process of the run has one."""

    def __init__(
        self,
        folder: Path,
        tensorboard: bool = True,
        wandb_project: str | None = None,
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        """Opens the log; an existing one is continued.

        Args:
            folder: the run's folder, made where missing; TensorBoard's files go to `folder/tensorboard`.
            tensorboard: whether TensorBoard gets a copy.
            wandb_project: Weights & Biases project that gets a copy; None for none.
            run_config: the resolved recipe, shown with the run in Weights & Biases.

        Raises:
            UserError: `wandb_project` is given and wandb is not installed.
            RunFolderError: metrics.jsonl holds a finished line that is not a JSON object.
        """
        self._mirrors: list[Mirror] = []
        if wandb_project is not None:
            self._mirrors.append(WandbMirror(folder, wandb_project, run_config or {}))
        if tensorboard:
            self._mirrors.append(TensorBoardMirror(folder / "tensorboard"))
        self._file = JsonlFile(folder / METRICS_FILE)

    def write(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Writes one step: "phase", "step", then `values` by key.

        NaN and infinities are written as null, with their keys in a list "nonfinite".

        Args:
            phase: phase of the run, such as "sft" or "rl".
            step: step within the phase.
            values: metrics by key; keys on wall-clock time start with "seconds/" or "tokens_per_s/".

        Raises:
            ValueError: a key of `values` is one that the line has of its own.
        """
        taken = [name for name in _OWN_KEYS if name in values]
        if taken:
            raise ValueError(f"The metric {taken[0]!r} would overwrite a key that every line has of its own.")
        numbers = {name: float(values[name]) for name in sorted(values)}
        self._file.append({"phase": phase, "step": step, **nulled(numbers)})
        for mirror in self._mirrors:
            mirror.write(phase, step, numbers)

    def sync(self) -> None:
        """See `JsonlFile.sync`."""
        self._file.sync()

    def rewind(self, phase_order: tuple[str, ...], phase: str, step: int) -> None:
        """Drops what a resumed run will write again: every line after (`phase`, `step`).

        Call it before the first `write`.

        Args:
            phase_order: every phase of the run, first to last.
            phase: phase of the last line to keep.
            step: step of the last line to keep; one below the first step keeps nothing of `phase`.

        Raises:
            ValueError: `phase`, or a line's phase, is not in `phase_order`.
        """
        kept = self._file.rewind(phase_order, phase, step)
        for mirror in self._mirrors:
            mirror.rewind(kept)

    def close(self) -> None:
        """Flushes and closes every copy."""
        self._file.close()
        for mirror in self._mirrors:
            mirror.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
