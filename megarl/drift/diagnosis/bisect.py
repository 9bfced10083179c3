"""Where two models part: by digests of their tensors, or by hidden states layer by layer."""

from collections.abc import Iterator

from torch import Tensor

from megarl.drift.diagnosis.case import EXACT, Bench, Case
from megarl.drift.diagnosis.computation import Computation
from megarl.drift.diagnosis.finding import Finding
from megarl.drift.diagnosis.side import EngineSide

_FIX = "find out why it did not arrive: megarl sync-check compares a digest of every tensor on both sides"
_SHOWN = 4


def findings_from_digests(bench: Bench, engine: EngineSide) -> Iterator[Finding]:
    """Tensors whose bytes differ, unless they are most of them: then the version is another, or the dtype."""
    held = engine.digests()
    if held is None:
        return
    own = bench.model.digests()
    shared = [name for name in own if name in held]
    differ = [name for name in shared if own[name] != held[name]]
    if differ and len(differ) <= len(shared) / 2:
        names = ", ".join(differ[:_SHOWN]) + (", ..." if len(differ) > _SHOWN else "")
        yield Finding(
            "tensor", "engine", 1.0, f"{len(differ)} of {len(shared)} tensors differ by their digests: {names}", _FIX
        )


def findings_from_hidden_states(case: Case, engine: EngineSide) -> Iterator[Finding]:
    """The first layer behind which hidden states are farther apart than rounding explains; else the output layer."""
    bench = case.bench
    theirs = engine.hidden_states(bench.rollouts)
    if theirs is None:
        return
    own = bench.model.hidden_states(bench.rollouts, Computation())
    exact = bench.model.hidden_states(bench.rollouts, Computation(dtype=EXACT[bench.model.traits.dtype]))
    for depth, (one_MH, other_MH, exact_MH) in enumerate(zip(own, theirs, exact, strict=True)):
        apart, rounding = _relative(other_MH, exact_MH), _relative(one_MH, exact_MH)
        if apart > 2 * rounding:
            where = "the embedding" if depth == 0 else f"layer {depth - 1}"
            yield Finding(
                "tensor",
                "engine",
                1.0,
                f"behind {where} the hidden states are {apart:.2g} apart (relative), where rounding explains "
                f"{2 * rounding:.2g}, and before it they agree",
                f"compare the tensors of {where} on both sides; {_FIX}",
            )
            return
    if case.before.mean > case.floor.limit:
        yield Finding(
            "tensor",
            "engine",
            1.0,
            "the hidden states agree behind every layer, so the last norm or the output layer differs",
            f"compare the last norm and lm_head.weight on both sides; {_FIX}",
        )


def _relative(one_MH: Tensor, exact_MH: Tensor) -> float:
    exact_MH = exact_MH.double()
    return float((one_MH.double() - exact_MH).norm() / exact_MH.norm())
