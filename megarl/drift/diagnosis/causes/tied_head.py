"""A side's output layer is its embedding, and the other's is not."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation


class TiedHead:
    """The embedding stands in for the output layer."""

    name = "tied_head"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        if not case.bench.model.traits.tied:
            yield Hypothesis(Computation(tied=True), case.bench.rollouts.sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        return (
            "its log-probs are those of a model whose output layer is its embedding, and the model has an output layer "
            "of its own",
            "set tie_word_embeddings in config.json as the model has it, and send lm_head.weight with each sync",
        )
