"""A side reads other tokens before the prompt than the other: a chat template's opening, or a begin token."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation


class ChatTemplate:
    """Openers that the model's tokenizer may put before a prompt are added, or the prompt's first token left out."""

    name = "chat_template"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        rollouts = case.bench.rollouts
        if int(rollouts.prompt_lengths_B.min()) > 1:
            yield Hypothesis(Computation(drop=1), rollouts.sampling)
        for opener in case.bench.model.traits.openers:
            yield Hypothesis(Computation(prepend=opener), rollouts.sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        done = (
            "the prompt's first token left out"
            if best.computation.drop
            else f"tokens {list(best.computation.prepend)} before the prompt"
        )
        return (
            f"its log-probs are those with {done}",
            "build the prompt's token ids once, by one chat template, give both sides those ids, and add no begin "
            "token to them twice",
        )
