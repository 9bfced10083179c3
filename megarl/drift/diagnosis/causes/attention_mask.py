"""A side's tokens see others than those before them in their own sequence."""

from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation

_PACKS = (2, 3, 4, 8, 16)


class AttentionMask:
    """Sequences that are packed end to end see each other, or tokens see those behind them, or only the nearest."""

    name = "attention_mask"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        rollouts = case.bench.rollouts
        rows, width = rollouts.ids_BT.shape
        for packed in sorted({*(pack for pack in _PACKS if pack < rows), rows}):
            for restarts in (True, False):
                yield Hypothesis(Computation(packed=packed, restarts=restarts), rollouts.sampling)
        yield Hypothesis(Computation(causal=False), rollouts.sampling)
        window = 8
        while window < width:
            yield Hypothesis(Computation(window=window), rollouts.sampling)
            window *= 2

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        computation = best.computation
        if not computation.causal:
            return (
                "its log-probs are those of tokens that see the tokens behind them",
                "use a causal attention mask",
            )
        if computation.window is not None:
            return (
                f"its log-probs are those of tokens that see the nearest {computation.window} tokens alone",
                "give both sides the same attention window",
            )
        positions = "from 0 for each" if computation.restarts else "on from one to the next"
        return (
            f"its log-probs are those of {computation.packed} sequences end to end that see each other, positions "
            f"counted {positions}",
            "give the packed batch its sequence boundaries (cu_seqlens), so that attention stops at them",
        )
