"""A side rounds the operands of its linear layers to FP8."""

from collections.abc import Iterator
from typing import get_args

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import FP8, Computation, Dtype

_SCALES: dict[FP8, str] = {"tensorwise": "tensor", "stepwise": "tensor", "per_channel": "row", "blockwise": "block"}


class FP8Recipe:
    """A scale for each tensor (of a whole pass, or of a step of decoding), for each row, or for each block."""

    name = "fp8"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        # FP8 starts from 16 bits in engines, whatever the trainer computes in; emulated, from the trainer's own
        dtypes: tuple[Dtype | None, ...] = (None, "bf16") if case.bench.model.traits.dtype == "fp32" else (None,)
        for dtype in dtypes:
            for kind in get_args(FP8):
                yield Hypothesis(Computation(dtype, fp8=kind), case.bench.rollouts.sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        kind = _SCALES[best.computation.fp8 or "tensorwise"]
        dtype = f" in {best.computation.dtype}" if best.computation.dtype else ""
        return (
            f"its log-probs are those of linear layers{dtype} whose operands are rounded to E4M3 with a scale for each {kind}",
            "quantise both sides by the same recipe (engine.quantization, precision.fp8), leave it off, or correct for "
            "it (rl.correction)",
        )
