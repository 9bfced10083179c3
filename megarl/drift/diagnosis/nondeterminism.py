"""A side that does not give the same log-probs twice: each side against itself, with its sequences run otherwise."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Bench, Case
from megarl.drift.diagnosis.distance import EXPLAINS, Distance
from megarl.drift.diagnosis.finding import Finding
from megarl.drift.diagnosis.side import EngineSide

_FIX = (
    "no correction of a mistake can beat this floor: use batch-invariant kernels on that side (vLLM: "
    "VLLM_BATCH_INVARIANT=1), or a correction (rl.correction)"
)


def engine_floor(bench: Bench, engine: EngineSide) -> float | None:
    """Mean distance, in nats, of the engine's log-probs one by one from those of all at once; None if it can't tell."""
    scored = [engine.log_probs(bench.rollouts, rows) for rows in (1, len(bench.rollouts.ids_BT))]
    alone_N, together_N = scored
    return None if alone_N is None or together_N is None else Distance.between(alone_N, together_N).mean


def findings_from_floor(case: Case, engine: float | None) -> Iterator[Finding]:
    """A floor above what rounding explains, as large as the drift itself."""
    drift = case.before.mean
    if engine is not None and engine > case.floor.limit and engine > EXPLAINS * drift:
        yield Finding(
            "nondeterminism",
            "engine",
            min(1.0, engine / drift),
            f"the engine's log-probs move by {engine:.2g} nats a token when its sequences are run one by one, where "
            f"rounding explains {case.floor.limit:.2g}, and the whole drift is {drift:.2g}",
            _FIX,
        )
