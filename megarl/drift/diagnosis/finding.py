"""What a diagnosis ends with."""

from dataclasses import dataclass
from typing import Literal

Who = Literal["engine", "trainer", "both", "either"]
"""'either': one of them, and which is not known."""


@dataclass(frozen=True)
class Finding:
    """One cause.

    Attributes:
        cause: its name, see docs/drift_diagnosis.md.
        side: whose numbers show it.
        score: the share of the mean |Delta| that it explains, from 0 to 1.
        evidence: in words, with numbers.
        fix: what to do.
    """

    cause: str
    side: Who
    score: float
    evidence: str
    fix: str


@dataclass(frozen=True)
class Floor:
    """What no fix of a mistake can beat, in nats a token.

    Attributes:
        rounding: mean distance of the model from itself in a higher precision.
        batching: mean distance of the model from itself with its sequences run one by one.
        engine: the same of the engine; None where it was not asked.
        exact: name of the higher precision.
    """

    rounding: float
    batching: float
    engine: float | None
    exact: str

    @property
    def limit(self) -> float:
        """How far right computations may be apart: by the triangle inequality, twice the rounding of one."""
        return 2 * max(self.rounding, self.batching)


@dataclass(frozen=True)
class Alone:
    """What was known of a dump that was looked at without a model.

    Attributes:
        engine: mean distance, in nats, of the engine's log-probs of one token behind the same tokens from each other;
            None where no token is there twice.
        trainer: likewise of the trainer's.
        contrasts: differences of two tokens behind the same tokens.
        undecided: what stays open, each with what decides it.
    """

    engine: float | None
    trainer: float | None
    contrasts: int
    undecided: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Diagnosis:
    """The whole answer.

    Attributes:
        tokens: that were compared.
        drift: mean |trainer - engine|, in nats a token.
        trainer, engine: mean distance of each side from the model that experiments are run on; None without one.
        floor: None without such a model.
        findings: most certain first; none where both sides compute the same as far as this precision can tell.
    """

    tokens: int
    drift: float
    trainer: float | None
    engine: float | None
    floor: Floor | None
    findings: tuple[Finding, ...]
    alone: Alone | None = None
