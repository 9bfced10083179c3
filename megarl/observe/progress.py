"""What a run shows while it works: a live bar in a terminal, plain lines in a log."""

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Self

from rich import progress as bars
from rich.console import Console
from rich.table import Column


class Progress:
    """Shows phases and steps. Leaving the context restores the terminal, whatever ended the run."""

    def __init__(self, lines: int = 20) -> None:
        """Looks at stdout once.

        Args:
            lines: about how many lines a phase gets where stdout is not a terminal; its first and last step have one.
        """
        self._lines = lines
        self._first = 1
        self._name = ""
        self._total = 0
        self._bars: bars.Progress | None = None
        self._task: bars.TaskID | None = None
        console = Console()
        # rich alone would also draw bars into a log file where FORCE_COLOR is set.
        if sys.stdout is not None and sys.stdout.isatty() and console.is_interactive:
            self._bars = _bars(console)

    def phase(self, name: str, total: int, start: int = 0) -> None:
        """Begins a phase.

        Args:
            name: what is being done.
            total: steps in the phase.
            start: steps already over, where a run is resumed.
        """
        self._name, self._total, self._first = name, total, start + 1
        if self._bars is not None:
            self._task = self._bars.add_task(name, total=total, completed=start, values="")
        else:
            self.note(f"{name}: {total} steps" + (f", {start} already done" if start else ""))

    def advance(self, step: int, text_fields: Mapping[str, float]) -> None:
        """Shows a step that is over.

        Args:
            step: steps of the phase that are over, this one included; 1 to the phase's total.
            text_fields: numbers to show, by name, in their order.
        """
        values = "  ".join(f"{name} {_short(value)}" for name, value in text_fields.items())
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=step, values=values)
        elif step in (self._first, self._total) or step % max(1, self._total // self._lines) == 0:
            self.note(f"{self._name} {step}/{self._total}  {values}".rstrip())

    def note(self, message: str) -> None:
        """Shows a line that stays."""
        if self._bars is not None:
            self._bars.console.print(message, markup=False, highlight=False)
        else:
            try:
                print(message, flush=True)
            except (BrokenPipeError, ValueError):
                # whoever read the output is gone, or it was closed: no reason to end a run
                sys.stdout = None

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    @property
    def _live(self) -> AbstractContextManager[object]:
        return nullcontext() if self._bars is None else self._bars


def _bars(console: Console) -> bars.Progress:
    return bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(bar_width=12, table_column=Column(min_width=12)),
        bars.MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=9)),
        bars.TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
        # last, so that a narrow terminal cuts these and not the count or the clock
        bars.TextColumn(
            "{task.fields[values]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
        ),
        console=console,
        expand=True,
    )


def _short(value: float) -> str:
    """Four characters or so: 0.532, 1.2e-05, 12345."""
    return f"{value:.3f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.3g}"
