"""The tree: tokens, floors, experiments on each side, where the models part. See docs/drift_diagnosis.md."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megarl.drift.diagnosis.bisect import findings_from_digests, findings_from_hidden_states
from megarl.drift.diagnosis.case import Bench, Case, Hypothesis
from megarl.drift.diagnosis.causes import CAUSES, LAST_RESORTS, Cause
from megarl.drift.diagnosis.distance import DECIDES, EXPLAINS, Distance
from megarl.drift.diagnosis.finding import Diagnosis, Finding
from megarl.drift.diagnosis.nondeterminism import engine_floor, findings_from_floor
from megarl.drift.diagnosis.rollouts import Rollouts
from megarl.drift.diagnosis.samples import findings_from_samples
from megarl.drift.diagnosis.side import EngineSide, Model
from megarl.drift.diagnosis.tokens import findings_from_tokens


@dataclass(frozen=True)
class Tried:
    """An experiment that explains a drift."""

    cause: Cause
    hypothesis: Hypothesis
    after: Distance


def diagnose(rollouts: Rollouts, model: Model | None = None, engine: EngineSide | None = None) -> Diagnosis:
    """Names what makes the trainer's and the engine's log-probs differ.

    Args:
        rollouts: tokens, and the log-probs that both sides reported.
        model: the trainer's weights in a model that experiments can be run on; without one only tokens are looked at.
        engine: what the engine can be asked; None where it is gone.
    """
    drift = Distance.between(rollouts.trainer_N, rollouts.engine_N)
    tokens = int((~drift.log_ratio_N.isnan()).sum())
    from_tokens = list(findings_from_tokens(rollouts))
    if model is None:
        return Diagnosis(tokens, drift.mean, None, None, None, tuple(from_tokens))
    bench = Bench(model, rollouts)
    floor = bench.floor(None if engine is None else engine_floor(bench, engine))
    sides = (
        Case(bench, "engine", rollouts.engine_N, floor),
        Case(bench, "trainer", rollouts.trainer_N, floor),
    )
    findings = from_tokens
    if not from_tokens:
        for case in sides:
            findings += _of_side(case, engine if case.who == "engine" else None)
        if not findings:
            findings += findings_from_samples(bench)
    return Diagnosis(tokens, drift.mean, sides[1].before.mean, sides[0].before.mean, floor, tuple(findings))


def _of_side(case: Case, engine: EngineSide | None) -> Iterator[Finding]:
    if engine is not None:
        found = list(findings_from_digests(case.bench, engine))
        if found:
            yield from found
            return
    best = best_of(case, CAUSES)
    if best is None and case.before.mean > case.floor.rounding:
        best = best_of(case, LAST_RESORTS)
    if best is not None:
        yield _finding(case, best)
    elif case.before.mean > case.floor.rounding:
        yield from _where_they_part(case, engine)


def _where_they_part(case: Case, engine: EngineSide | None) -> Iterator[Finding]:
    found = [] if engine is None else list(findings_from_floor(case, case.floor.engine))
    if not found and engine is not None:
        found = list(findings_from_hidden_states(case, engine))
    if not found and case.before.mean > case.floor.limit:
        found = [_unexplained(case)]
    yield from found


def best_of(case: Case, causes: Sequence[Cause]) -> Tried | None:
    """The experiment that leaves least of the drift; of those that leave as much, the earliest in the tree."""
    best: Tried | None = None
    if case.before.mean <= case.floor.batching:
        return None
    for cause in causes:
        for hypothesis in cause.hypotheses(case):
            after = case.after(hypothesis)
            if not case.explains(hypothesis, after):
                continue
            tried = Tried(cause, hypothesis, after)
            if best is None or _is_better(case, tried, best):
                best = tried
    return best


def _is_better(case: Case, tried: Tried, best: Tried) -> bool:
    """Whether it leaves less; of two that add rounding errors and explain less than half, whether it is likelier.

    What such a one leaves is least where it errs least, as errors that are not the side's add to the distance.
    """
    errors = [case.errors(one.hypothesis) for one in (tried, best) if one.hypothesis.computation.only_rounds]
    explained = max(one.after.explained(case.before) for one in (tried, best))
    if len(errors) == 2 and all(one.is_coarser for one in errors) and explained <= EXPLAINS:
        return errors[0].likelihood > errors[1].likelihood
    return tried.after.mean < best.after.mean and tried.after.nearer_than(best.after) > DECIDES


def _finding(case: Case, best: Tried) -> Finding:
    evidence, fix = best.cause.words(case, best.hypothesis)
    score = best.after.explained(case.before)
    shown = (
        f"with that switched on in the model, the mean distance goes from {case.before.mean:.3g} to "
        f"{best.after.mean:.3g} nats a token ({max(0.0, score):.1%} explained; rounding: {case.floor.limit:.2g})"
    )
    if best.hypothesis.computation.only_rounds:
        errors = case.errors(best.hypothesis)
        shown += (
            f", and its errors against {case.floor.exact} are {errors.side:.2g}, where those of that precision are "
            f"{errors.hypothesis:.2g} and the model's own {errors.model:.2g}, at a rank "
            f"correlation of {errors.correlation:.2f} with the former"
        )
    return Finding(best.cause.name, case.who, max(0.0, score), f"{evidence}: {shown}", fix)


def _unexplained(case: Case) -> Finding:
    return Finding(
        "unexplained",
        case.who,
        0.0,
        f"its log-probs are {case.before.mean:.3g} nats a token from the model's, where rounding explains "
        f"{case.floor.limit:.2g}, and no experiment takes half of that away",
        "compare weights by digest (megarl sync-check) and settings by hand, and give older weights for the "
        "experiments on stale ones",
    )
