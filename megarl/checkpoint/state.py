"""What a run must remember beside its tensors."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from megarl.rollout.types import Completion

Phase = Literal["sft", "rl", "done"]
PHASES: tuple[Phase, ...] = ("sft", "rl", "done")


@dataclass
class RunState:
    """Where a run stands. With the weights, the optimizer and the RNG it is all that a resumed run reads.

    Attributes:
        phase: the phase that runs next, or 'done'.
        step: finished steps of that phase.
        demonstrations_drawn: position in the source's stream of demonstrations.
        problems_drawn: position in its stream of training problems.
        kl_coefficient: weight of the KL estimate as it stands; it moves where `rl.kl.target` steers it.
        clip_high: the objective's as it stands, where the alarm on entropy raises it; None elsewhere.
        entropy_baseline: entropy of the first RL steps, for the alarm.
        correction_level: what drift.correction=auto picked last; see `megarl.drift.auto.Level`.
        correction_calm: steps in a row that have asked it for less.
        weight_version: version of the weights; each RL update that reaches the engine raises it by one.
        evaluations: results so far, by occasion ('before', 'after').
        nonfinite_updates: by model, updates without a finite loss or gradient in a row, up to now.
        awaited: on the main rank, with asynchronous generation: responses that no step has trained on yet, whole or
            begun, by position of their batch in the stream of training problems and by row of that batch.
    """

    phase: Phase = "sft"
    step: int = 0
    demonstrations_drawn: int = 0
    problems_drawn: int = 0
    kl_coefficient: float = 0.0
    clip_high: float | None = None
    entropy_baseline: list[float] = field(default_factory=list)
    correction_level: int = 0
    correction_calm: int = 0
    weight_version: int = 0
    evaluations: dict[str, Any] = field(default_factory=dict)
    nonfinite_updates: dict[str, int] = field(default_factory=dict)
    awaited: dict[int, dict[int, Completion]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; responses are a file of their own in a checkpoint (see `checkpoint.responses`)."""
        return {name: value for name, value in asdict(replace(self, awaited={})).items() if name != "awaited"}

    @property
    def folder_name(self) -> str:
        """Name of the checkpoint of this state; names sort in the order of training."""
        return f"{PHASES.index(self.phase)}-{self.phase}-{self.step:08d}"
