"""What a planted fault is."""

from collections.abc import Callable
from dataclasses import dataclass

from megarl.diagnose.selftest.scene import Scene
from megarl.drift.diagnosis.finding import Who
from megarl.drift.diagnosis.rollouts import Rollouts


@dataclass(frozen=True)
class Planted:
    """A scene with its fault.

    Attributes:
        rollouts: with both sides' log-probs.
        says: what the evidence must contain, such as the version's age.
    """

    rollouts: Rollouts
    says: str = ""


@dataclass(frozen=True)
class Fault:
    """A fault and the finding that it must lead to.

    Attributes:
        name: of the fault.
        cause: that must be named first.
        side: whose it is.
        plant: puts it into a scene, and has that generate and score.
        families: of models, of which a seed takes one.
    """

    name: str
    cause: str
    side: Who
    plant: Callable[[Scene], Planted]
    families: tuple[str, ...] = ("llama", "qwen2", "qwen3")
