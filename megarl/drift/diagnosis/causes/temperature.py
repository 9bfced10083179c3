"""A side's log-probs are of another temperature."""

from collections.abc import Iterator
from dataclasses import replace

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.causes.raw_log_probs import looks_raw
from megarl.drift.diagnosis.computation import Computation
from megarl.drift.diagnosis.fit import fit_temperature


class Temperature:
    """The temperature is fitted to the side's log-probs."""

    name = "temperature"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        if looks_raw(case):
            return
        sampling = case.bench.rollouts.sampling
        fitted = fit_temperature(case.bench.plain, case.target_N)
        yield Hypothesis(Computation(), replace(sampling, temperature=fitted, top_p=1.0, top_k=0))

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        declared = case.bench.rollouts.sampling.temperature
        surprise = case.bench.plain.surprise(best.sampling)
        return (
            f"its log-probs are those at a temperature of {best.sampling.temperature:.4g}, and {declared:.4g} is what "
            f"was asked for (its tokens are {surprise:+.1f} standard errors from what that temperature draws)",
            "give both sides the same temperature (rollout.temperature), and divide logits by it, not log-probs",
        )
