"""A side rounds the operands of its linear layers to FP8."""

from collections.abc import Iterator
from typing import get_args

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import FP8, Computation

_SCALES: dict[FP8, str] = {"tensorwise": "tensor", "stepwise": "tensor", "per_channel": "row", "blockwise": "block"}


class FP8Recipe:
    """A scale for each tensor (of a whole pass, or of a step of decoding), for each row, or for each block."""

    name = "fp8"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        for kind in get_args(FP8):
            yield Hypothesis(Computation(fp8=kind), case.bench.rollouts.sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        kind = _SCALES[best.computation.fp8 or "tensorwise"]
        return (
            f"its log-probs are those of linear layers whose operands are rounded to E4M3 with a scale for each {kind}",
            "quantise both sides by the same recipe (engine.quantization, precision.fp8), leave it off, or correct for "
            "it (rl.correction)",
        )
