"""Which checkpoints stay after a save."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Retention:
    """A checkpoint stays where one of these says so; the newest always does.

    Attributes:
        last: so many of the newest stay.
        every: those of RL steps that it divides stay; 0 for none.
        best: so many with the best scores stay.
        better: whether the larger or the smaller score is the better one.
    """

    last: int
    every: int = 0
    best: int = 0
    better: Literal["max", "min"] = "max"

    def dropped(self, names: Sequence[str], scores: Mapping[str, float]) -> list[str]:
        """Those of some checkpoints that nothing keeps.

        Args:
            names: as `RunState.folder_name` forms them, oldest first.
            scores: of those that have one; what is not finite is none.
        """
        kept = set(names[-self.last :])
        if self.every:
            kept |= {name for name in names if _is_of_rl(name) and int(name.split("-")[2]) % self.every == 0}
        sign = 1 if self.better == "max" else -1
        # of equal scores the later is kept
        ranked = sorted(
            (name for name in names if math.isfinite(scores.get(name, math.nan))),
            key=lambda name: (sign * scores[name], name),
        )
        kept |= set(ranked[len(ranked) - min(self.best, len(ranked)) :])
        return [name for name in names if name not in kept]


def _is_of_rl(name: str) -> bool:
    return name.split("-")[1] == "rl"
