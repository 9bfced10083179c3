"""A side computes with older weights."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation


class StaleWeights:
    """All tensors are those of an earlier version."""

    name = "stale_weights"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        for age in range(1, case.bench.model.traits.ages + 1):
            yield Hypothesis(Computation(age=age), case.bench.rollouts.sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        return (
            f"its log-probs are those of the weights {best.computation.age} version(s) before the newest, in full",
            "sync the weights before the rollout and check their version and digests (megarl sync-check), or "
            "correct for the age (rl.correction)",
        )
