"""A side's log-probs are laid out one token off."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation


class OffByOne:
    """Log-probs of the token before, or of the token after."""

    name = "off_by_one"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        for shift in (1, -1):
            yield Hypothesis(Computation(), case.bench.rollouts.sampling, shift)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        where = "before" if best.shift > 0 else "behind"
        return (
            f"each of its log-probs is that of the token one place {where} the one that it stands at",
            "lay log-probs out at the tokens that they are of: the logits at position t are of token t + 1",
        )
