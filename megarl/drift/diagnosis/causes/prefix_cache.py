"""The engine answers from keys and values of a prompt that older weights left in its cache."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation

_BLOCKS = (1, 8, 16, 32, 64)


class PrefixCache:
    """Whole blocks of the prompt are by older weights, the rest by the newest."""

    name = "prefix_cache"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        rollouts = case.bench.rollouts
        longest = int(rollouts.prompt_lengths_B.max())
        for age in range(1, case.bench.model.traits.ages + 1):
            for block in _BLOCKS:
                if block < longest:
                    yield Hypothesis(Computation(prompt_age=age, block=block), rollouts.sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        return (
            "its log-probs are those behind a prompt whose keys and values are by the weights "
            f"{best.computation.prompt_age} version(s) before the newest, in whole blocks of {best.computation.block} "
            "tokens",
            "drop the prefix cache with each update of the weights (vLLM: /reset_prefix_cache)",
        )
