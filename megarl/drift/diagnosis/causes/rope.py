"""A side turns its heads by other angles."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation

_THETAS = (1e4, 1e5, 5e5, 1e6, 5e6, 1e7)
"""Those of published models."""
_FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0)


class Rope:
    """Other bases, and positions that are scaled."""

    name = "rope"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        sampling, own = case.bench.rollouts.sampling, case.bench.model.traits.rope_theta
        for theta in _THETAS:
            if theta != own:
                yield Hypothesis(Computation(rope_theta=theta), sampling)
        for factor in _FACTORS:
            yield Hypothesis(Computation(rope_factor=factor), sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        computation, own = best.computation, case.bench.model.traits.rope_theta
        how = (
            f"positions divided by {computation.rope_factor:g}"
            if computation.rope_theta is None
            else f"rope_theta={computation.rope_theta:g}, and the model has {own:g}"
        )
        return (
            f"its log-probs are those with {how}",
            "give both sides the rope_theta and rope_scaling of the model's config.json",
        )
