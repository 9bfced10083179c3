"""What a run writes down and shows: on the main rank; the others keep silent."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from megarl.checkpoint.state import PHASES, Phase, RunState
from megarl.config.schema import Recipe
from megarl.dumps.folder import DumpFolder
from megarl.dumps.schema import Header
from megarl.loop.folder import writing_to
from megarl.observe.metrics import MetricsWriter
from megarl.observe.progress import Progress
from megarl.observe.samples import Sample, SampleWriter

SHOWN = {
    "sft": {"loss": "sft/loss"},
    "rl": {
        "reward": "reward/mean",
        "tokens": "response/tokens_mean",
        "entropy": "policy/entropy",
        "kl": "kl/reference_k3",
        "drift": "drift/abs_mean",
    },
}
"""Which metrics a phase's progress line shows, by their short names."""


class Journal:
    """Metrics, samples and progress of one run; a context that closes them."""

    def __init__(self, recipe: Recipe, *, is_main: bool) -> None:
        """Opens nothing yet. Args: recipe: the run's. is_main: whether this rank writes."""
        self._recipe, self._is_main = recipe, is_main
        self._open = ExitStack()

    def __enter__(self) -> "Journal":
        if self._is_main:
            with writing_to(self._recipe.output_dir, "its logs"):
                self._begin(Path(self._recipe.output_dir))
        return self

    def _begin(self, folder: Path) -> None:
        with ExitStack() as opened:
            self._metrics = opened.enter_context(
                MetricsWriter(folder, wandb_project=self._recipe.observe.wandb_project, run_config=asdict(self._recipe))
            )
            self._samples = opened.enter_context(SampleWriter(folder))
            self._dumps = DumpFolder(folder, self._recipe.observe.dump_keep)
            self._progress = opened.enter_context(Progress())
            self._open = opened.pop_all()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # a disk that took no more takes no last lines either, which is told already
        with writing_to(self._recipe.output_dir, "its logs") if kind is None else suppress(OSError):
            self._open.close()

    def rewind(self, state: RunState) -> None:
        """Drops what a run resumed at `state` will write again."""
        if self._is_main:
            with writing_to(self._recipe.output_dir, "its logs"):
                self._metrics.rewind(PHASES, state.phase, state.step)
                self._samples.rewind(PHASES, state.phase, state.step)
                # only RL dumps, and a run that is done has no step to write again
                self._dumps.rewind({"sft": 0, "rl": state.step}.get(state.phase))

    def begin(self, phase: Phase, total: int, start: int) -> None:
        """A phase begins, or goes on after `start` steps."""
        if self._is_main:
            self._progress.phase(phase, total, start)

    def step(self, phase: Phase, step: int, values: Mapping[str, float], samples: Sequence[Sample] = ()) -> None:
        """A step is over.

        Raises:
            RunFolderError: the folder takes no more.
        """
        if self._is_main:
            with writing_to(self._recipe.output_dir, "a step's metrics and samples"):
                self._samples.write(step, samples, phase)
                self._metrics.write(phase, step, values)
            self._progress.advance(
                step, {short: values[name] for short, name in SHOWN[phase].items() if name in values}
            )

    def sync(self) -> None:
        """Has the lines so far on the disk: a checkpoint that outlives a lost node must not outlive its steps' lines.

        Raises:
            RunFolderError: they do not get there.
        """
        if self._is_main:
            with writing_to(self._recipe.output_dir, "a step's metrics and samples"):
                self._metrics.sync()
                self._samples.sync()

    def dump(self, header: Header, pieces: Mapping[int, str], batches: Iterable[pa.RecordBatch]) -> None:
        """Writes a rollout dump; see `DumpFolder.write`."""
        if self._is_main:
            self._dumps.write(header, pieces, batches)

    def note(self, message: str) -> None:
        """Shows a line that stays."""
        if self._is_main:
            self._progress.note(message)
