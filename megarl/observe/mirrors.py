"""Copies of the metrics for TensorBoard and Weights & Biases; metrics.jsonl stays the record."""

import importlib
import math
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from megarl.config.errors import UserError
from megarl.observe.files import write_atomic


class Mirror(Protocol):
    """A copy of the metrics."""

    def write(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Adds one step; values may be NaN or infinite."""

    def rewind(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Forgets all but `lines`, those that metrics.jsonl kept."""

    def close(self) -> None:
        """Flushes and closes the copy."""


class TensorBoardMirror:
    """Scalars in one TensorBoard run a phase, since the steps of every phase start anew.

    The tag is the metric's key, or `phase/key` where the key has no prefix of its own.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` gets one folder a phase, made at the phase's first step."""
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def write(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Adds one step's scalars."""
        writer = self._writers.get(phase) or self._open(phase)
        for key, value in values.items():
            writer.add_scalar(key if "/" in key else f"{phase}/{key}", value, step)

    def rewind(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Hides all that was logged and logs `lines` again.

        TensorBoard's files cannot be cut, and their tail is lost in a kill; so the copy is made anew from
        the lines that were kept.
        """
        self.close()
        if self._folder.exists():
            for phase in sorted(entry.name for entry in self._folder.iterdir() if entry.is_dir()):
                self._open(phase, purge_step=0)
        for line in lines:
            lost = dict.fromkeys(line.get("nonfinite", []), math.nan)
            values = {key: value for key, value in line.items() if key not in ("phase", "step", "nonfinite")}
            self.write(line["phase"], line["step"], {**values, **lost})

    def close(self) -> None:
        """Flushes and closes the event files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _open(self, phase: str, purge_step: int | None = None) -> Any:
        # Imported here: it takes seconds, and reading a run back needs none of it.
        from torch.utils.tensorboard import SummaryWriter

        make: Any = SummaryWriter
        self._writers[phase] = make(str(self._folder / phase), purge_step=purge_step, flush_secs=10)
        return self._writers[phase]


class WandbMirror:
    """Metrics in one Weights & Biases run, named `phase/key`, each phase with its own step axis."""

    def __init__(self, folder: Path, project: str, run_config: Mapping[str, Any]) -> None:
        """Starts the run, or continues the one whose id `folder/wandb_run_id` holds.

        Raises:
            UserError: wandb is not installed.
        """
        check_wandb(project)
        wandb: Any = importlib.import_module("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        identity = folder / "wandb_run_id"
        if not identity.exists():
            write_atomic(identity, uuid.uuid4().hex.encode())
        self._run = wandb.init(
            project=project,
            config=dict(run_config),
            dir=str(folder),
            id=identity.read_text(),
            resume="allow",
        )
        self._phases: set[str] = set()

    def write(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Adds one step's values."""
        if phase not in self._phases:
            self._run.define_metric(f"{phase}/*", step_metric=f"{phase}/step")
            self._phases.add(phase)
        names = {key if key.startswith(f"{phase}/") else f"{phase}/{key}": value for key, value in values.items()}
        self._run.log({f"{phase}/step": step, **names})

    def rewind(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Leaves the run as it is: what was sent cannot be taken back, so repeated steps show twice."""

    def close(self) -> None:
        """Sends what is left and ends the run."""
        self._run.finish()


def check_wandb(project: str | None) -> None:
    """Refuses a Weights & Biases project where the package is missing. Changes nothing.

    Args:
        project: `observe.wandb_project`; None asks for nothing.

    Raises:
        UserError: wandb is not installed.
    """
    if project is None:
        return
    try:
        importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        if error.name != "wandb":
            raise
        raise UserError(
            f"observe.wandb_project is {project!r} but wandb is not installed: "
            "run `.venv/bin/pip install -c constraints.txt -e '.[wandb]'` or set observe.wandb_project=null."
        ) from None
