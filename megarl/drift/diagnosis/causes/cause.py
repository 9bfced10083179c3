"""What every cause that is found by experiment has."""

from collections.abc import Iterator
from typing import Protocol

from megarl.drift.diagnosis.case import Case, Hypothesis


class Cause(Protocol):
    """One cause: what an experiment switches on, and what is said where that explains the drift."""

    @property
    def name(self) -> str:
        """As findings have it."""

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """The experiments, simplest first; none where the model or the rollouts do not allow any."""

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """What was switched on, in words with numbers, and the fix."""
