"""One tensor, or those of one layer, are another version's."""

import re
from collections.abc import Iterator

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.computation import Computation

_LAYER = re.compile(r"\blayers\.(\d+)\.")


def group_of(name: str) -> str:
    """What a tensor is part of: 'layer 3', or its own name outside the layers."""
    match = _LAYER.search(name)
    return f"layer {match[1]}" if match else name


class Tensors:
    """Older tensors are put back a layer at a time, then one by one in the layer that explains."""

    name = "tensor"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        model, sampling = case.bench.model, case.bench.rollouts.sampling
        if not model.traits.ages:
            return
        groups: dict[str, list[str]] = {}
        for name in model.digests():
            groups.setdefault(group_of(name), []).append(name)
        for age in range(1, model.traits.ages + 1):
            for names in groups.values():
                whole = Hypothesis(Computation(tensors=tuple(names), tensors_age=age), sampling)
                after = case.after(whole)
                if len(names) > 1 and after.explained(case.before) > 0:
                    for name in names:
                        yield Hypothesis(Computation(tensors=(name,), tensors_age=age), sampling)
                yield whole

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        names = best.computation.tensors
        what = names[0] if len(names) == 1 else f"the tensors of {group_of(names[0])}"
        return (
            f"its log-probs are those with {what} of the weights {best.computation.tensors_age} version(s) before the "
            "newest, and all others new",
            "find out why it did not arrive: megarl sync-check compares a digest of every tensor on both sides",
        )
