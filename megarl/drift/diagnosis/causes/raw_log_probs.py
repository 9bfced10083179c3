"""The engine reports log-probs of the model's own distribution, not of the one that it samples from."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation
from megarl.drift.diagnosis.rollouts import Sampling

_PLAIN = Sampling()


def looks_raw(case: Case) -> bool:
    """Whether the tokens look drawn from what was asked for rather than from the model's own distribution."""
    declared = case.bench.rollouts.sampling
    if case.who != "engine" or declared == _PLAIN:
        return False
    plain = case.bench.plain
    return abs(plain.surprise(declared)) < abs(plain.surprise(_PLAIN))


class RawLogProbs:
    """Before the temperature, top-p and top-k, though the tokens were drawn after them."""

    name = "raw_log_probs"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        if looks_raw(case):
            yield Hypothesis(Computation(), _PLAIN)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        declared, plain = case.bench.rollouts.sampling, case.bench.plain
        return (
            "its log-probs are those of the model's own distribution, while its tokens are drawn from the one asked "
            f"for (mean log-prob {plain.surprise(declared):+.1f} standard errors from that one's, "
            f"{plain.surprise(_PLAIN):+.1f} from the model's own)",
            "have the engine report processed log-probs (vLLM: --logprobs-mode processed_logprobs)",
        )
