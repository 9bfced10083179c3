"""A side keeps the residual stream in another precision than the other."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation


class ResidualPrecision:
    """The residual stream alone in fp32, or alone in bf16."""

    name = "residual_precision"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        other = Computation(residual="bf16" if case.bench.model.traits.residual == "fp32" else "fp32")
        yield Hypothesis(other, case.bench.rollouts.sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        return (
            f"its log-probs are those with the residual stream in {best.computation.residual}, and the model's is in "
            f"{case.bench.model.traits.residual}",
            "keep the residual stream in the same precision on both sides (precision.fp32_residual)",
        )
