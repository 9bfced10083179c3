"""Recipe section of what a run does about drift between trainer and engine."""

from dataclasses import dataclass
from typing import Any

from megarl.config.fields import key


@dataclass
class DriftConfig:
    """Bounds on measures of drift, by name, and who picks the correction; see docs/drift.md."""

    warn: dict[str, Any] = key(
        factory=dict, doc="Bounds by measure, such as {abs_p99: 0.05, ess_share: 0.5}; beyond one, the run says so."
    )
    skip_update: dict[str, Any] = key(
        factory=dict, doc="Bounds by measure; a step beyond one updates nothing, and the run goes on with the next."
    )
    stop: dict[str, Any] = key(
        factory=dict, doc="Bounds by measure; before a step beyond one updates anything, the run is saved and ends."
    )
    correction: str = key(
        "given",
        "'given' is what rl.correction says; 'auto' picks at each step by the drift that it measured.",
        choices=("given", "auto"),
    )
