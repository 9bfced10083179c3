"""A side's output layer, and so its logits, are in another precision than the other's."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation


class HeadPrecision:
    """The output layer alone in fp32, or alone in bf16."""

    name = "head_precision"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        other = Computation(head="bf16" if case.bench.model.traits.head == "fp32" else "fp32")
        yield Hypothesis(other, case.bench.rollouts.sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        return (
            f"its log-probs are those with the output layer in {best.computation.head}, and the model's is in "
            f"{case.bench.model.traits.head}",
            "compute the output layer and the log-softmax in fp32 on both sides (precision.fp32_head)",
        )
