"""One tensor, or those of one layer, are another version's."""

import re
from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation

_LAYER = re.compile(r"\blayers\.(\d+)\.")
_FEW = 128


def group_of(name: str) -> str:
    """What a tensor is part of: 'layer 3', or its own name outside the layers."""
    match = _LAYER.search(name)
    return f"layer {match[1]}" if match else name


class Tensors:
    """Older tensors are put back one by one, or, where the model has many, a layer at a time."""

    name = "tensor"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        model, sampling = case.bench.model, case.bench.rollouts.sampling
        if not model.traits.ages:
            return
        groups: dict[str, list[str]] = {}
        names = list(model.digests())
        for name in names:
            groups.setdefault(group_of(name), []).append(name)
        singles = [[name] for name in names] if len(names) <= _FEW else []
        for age in range(1, model.traits.ages + 1):
            for together in (*singles, *groups.values()):
                yield Hypothesis(Computation(tensors=tuple(together), tensors_age=age), sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        names = best.computation.tensors
        what = names[0] if len(names) == 1 else f"the tensors of {group_of(names[0])}"
        return (
            f"its log-probs are those with {what} of the weights {best.computation.tensors_age} version(s) before the "
            "newest, and all others new",
            "find out why it did not arrive: megarl sync-check compares a digest of every tensor on both sides",
        )
