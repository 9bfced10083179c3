"""A diagnosis in words."""

from rich.console import Console

from megarl.drift.diagnosis import Diagnosis


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
    if not diagnosis.findings:
        line(
            "No cause: both sides are as near as this precision allows."
            if floor is not None
            else "No cause shows in the tokens alone; give the trainer's weights (--model) for experiments."
        )
    for number, finding in enumerate(diagnosis.findings, start=1):
        who = {"engine": "the engine's side", "trainer": "the trainer's side", "both": "both sides"}[finding.side]
        line(f"{number}. {finding.cause}, on {who}: {finding.evidence}.")
        line(f"   Fix: {finding.fix}.")
