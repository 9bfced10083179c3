"""A diagnosis in words."""

from rich.console import Console

from megarl.drift.diagnosis import Diagnosis
from megarl.drift.diagnosis.finding import Who


def show(diagnosis: Diagnosis, console: Console | None = None) -> None:
    """Prints it: the drift, the floor, then each cause with its evidence and fix."""
    out = console or Console(highlight=False)

    def line(text: str) -> None:
        out.print(text, markup=False, soft_wrap=True)

    line(f"Drift: {diagnosis.drift:.3g} nats a token, mean |trainer - engine| over {diagnosis.tokens} tokens.")
    if diagnosis.trainer is not None and diagnosis.engine is not None:
        line(
            f"From the model that is experimented on: trainer {diagnosis.trainer:.3g}, engine {diagnosis.engine:.3g} "
            "nats a token."
        )
    floor = diagnosis.floor
    if floor is not None:
        line(
            f"Floor: the model is {floor.rounding:.2g} nats a token from itself in {floor.exact}, so two right "
            f"computations may be {floor.limit:.2g} apart; run sequence by sequence it moves by {floor.batching:.2g}"
            + ("." if floor.engine is None else f", and the engine by {floor.engine:.2g}.")
        )
    alone = diagnosis.alone
    if alone is not None and alone.engine is not None and alone.trainer is not None:
        line(
            f"One token behind the same tokens: the engine's log-probs of it are {alone.engine:.2g} nats from each "
            f"other, the trainer's {alone.trainer:.2g}; a drift that is no larger is a side's own."
        )
    if not diagnosis.findings:
        line(
            "No cause: both sides are as near as this precision allows."
            if floor is not None
            else "No cause shows in the dump alone."
        )
    for number, finding in enumerate(diagnosis.findings, start=1):
        line(f"{number}. {finding.cause}, on {_SIDES[finding.side]}: {finding.evidence}.")
        line(f"   Fix: {finding.fix}.")
    for what, how in () if alone is None else alone.undecided:
        line(f"A dump alone does not tell {what}.\n   To decide: {how}.")


_SIDES: dict[Who, str] = {
    "engine": "the engine's side",
    "trainer": "the trainer's side",
    "both": "both sides",
    "either": "one side",
}
