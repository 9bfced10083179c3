"""Rollouts to read: a few responses of every step, as text."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from megarl.observe.files import JsonlFile, nulled

SAMPLES_FILE = "samples.jsonl"


@dataclass(frozen=True)
class Sample:
    """One response as it was trained on.

    Attributes:
        problem_id: the prompt's identity.
        sample: index of the response among those of its prompt in the step.
        prompt: text as the model read it.
        response: text as the model wrote it, without end or padding tokens.
        reward: what the response earned.
        advantage: advantage of the response; one number, or the mean over its tokens.
        tokens: length of the response in tokens, end token included.
        finish_reason: why generation ended, such as "stop" or "length".
        weight_version: version of the weights that generated it; None where it has no token.
    """

    problem_id: str
    sample: int
    prompt: str
    response: str
    reward: float
    advantage: float
    tokens: int
    finish_reason: str
    weight_version: int | None


class SampleWriter:
    """Appends samples to samples.jsonl, in readable UTF-8. One process of the run has one."""

    def __init__(self, folder: Path) -> None:
        """Opens the log in `folder`, made where missing; an existing log is continued.

        Raises:
            RunFolderError: samples.jsonl holds a finished line that is not a JSON object.
        """
        self._file = JsonlFile(folder / SAMPLES_FILE)

    def write(self, step: int, samples: Sequence[Sample], phase: str = "rl") -> None:
        """Writes one line a sample: "phase", "step", then the fields of `Sample`."""
        for sample in samples:
            self._file.append({"phase": phase, "step": step, **nulled(asdict(sample))})

    def sync(self) -> None:
        """See `JsonlFile.sync`."""
        self._file.sync()

    def rewind(self, phase_order: tuple[str, ...], phase: str, step: int) -> None:
        """Drops every sample after (`phase`, `step`), as `MetricsWriter.rewind` does for metrics.

        Raises:
            ValueError: `phase`, or a line's phase, is not in `phase_order`.
        """
        self._file.rewind(phase_order, phase, step)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
