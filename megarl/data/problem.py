"""What a data source gives: problems to answer, and demonstrations to imitate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Problem:
    """One prompt with its reference answer.

    Attributes:
        id: identity of the prompt; the group of a rollout, and the key of its sampling randomness.
        prompt: text as the model reads it, template applied.
        answer: reference answer, for the reward.
        metadata: whatever the source's own reward needs.
    """

    id: str
    prompt: str
    answer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Source(Protocol):
    """A stream of problems. Every method is a pure function of the recipe's seed and its arguments.

    So a sampler's whole state is the index that it has reached, and every rank and every resumed run reads
    the same problems whatever the layout.
    """

    def training(self, index: int) -> Problem:
        """The training problem at `index`, counted from 0 without end; never an evaluation problem."""

    def evaluation(self) -> list[Problem]:
        """The evaluation problems, always the same ones."""

    def demonstration(self, index: int, progress: float) -> tuple[Problem, str]:
        """A training problem with a response to imitate.

        Args:
            index: position in the stream of demonstrations, counted from 0.
            progress: share of the warm start that is over, in [0, 1), for sources with a curriculum.

        Raises:
            DataError: the source has no demonstrations.
        """
