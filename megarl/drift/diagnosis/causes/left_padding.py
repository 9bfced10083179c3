"""A side reads padding as tokens, or counts it in the positions."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation


class LeftPadding:
    """Prompts are padded to one length without a mask, or without position ids."""

    name = "left_padding"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        rollouts = case.bench.rollouts
        if int(rollouts.prompt_lengths_B.max()) == int(rollouts.prompt_lengths_B.min()):
            return
        yield Hypothesis(Computation(padding="attended"), rollouts.sampling)
        yield Hypothesis(Computation(padding="gap"), rollouts.sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        lengths_B = case.bench.rollouts.prompt_lengths_B
        longest = int(lengths_B.max())
        padded = int((lengths_B < longest).sum())
        how = (
            "prompts padded on their left and the padding read as tokens"
            if best.computation.padding == "attended"
            else "padding between prompt and response counted in the positions"
        )
        return (
            f"its log-probs are those of {how}; {padded} of {len(lengths_B)} prompts are shorter than the longest "
            f"({longest} tokens)",
            "pass an attention mask and position ids that leave padding out, or pad on the right",
        )
