"""A side computes all of the model in another precision."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation, Dtype

_DTYPES: tuple[Dtype, ...] = ("fp32", "bf16", "fp16")


class WholeDtype:
    """Weights and activations in each other precision."""

    name = "dtype"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        for dtype in _DTYPES:
            if dtype != case.bench.model.traits.dtype:
                yield Hypothesis(Computation(dtype=dtype), case.bench.rollouts.sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        return (
            f"its log-probs are those of {best.computation.dtype}, and the other side computes in "
            f"{case.bench.model.traits.dtype}",
            "run both sides in one precision (engine.dtype, precision.dtype), or correct for it (rl.correction)",
        )
