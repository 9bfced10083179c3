"""A side never lets a response end, so that its distribution lacks the stop token."""

from collections.abc import Iterator
from dataclasses import replace

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation


class StopToken:
    """The stop token is banned in the engine."""

    name = "stop_token"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        rollouts = case.bench.rollouts
        if rollouts.stop_token_id is not None:
            yield Hypothesis(Computation(), replace(rollouts.sampling, banned=(rollouts.stop_token_id,)))

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        (token,) = best.sampling.banned
        return (
            f"its log-probs are those of a distribution without the stop token {token}",
            "let the engine sample the stop token from the first position on (no min_tokens, no ban on it), and give "
            "both sides the same one",
        )
