"""Whether a job that ended is tried again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["done", "again", "left", "stop"]
"""Over; tried again by this job; left to the next job of a chain; given up, by all jobs of the submission."""

_USER_ERROR = 2


@dataclass(frozen=True)
class Limits:
    """What a profile's `requeue` and `health` allow.

    Attributes:
        requeue: whether a job tries again by itself.
        same_step: failures in a row at one step of the run.
        failures: failures in all.
        excluded: bad nodes in all.
    """

    requeue: bool
    same_step: int
    failures: int
    excluded: int


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run, when it had ended.

    Attributes:
        attempt: job id and restart.
        code: exit code of the trainer.
        stopped: name of the signal that asked it to end, such as USR1; empty where none did.
        bad: nodes that did not pass the health check, for which nothing was started.
        reached: see `progress.reached`.
        saved: see `progress.saved`.
        done: whether the run came to its end.
        lost: exit code of the engine's servers, where they ended before the run did; empty elsewhere.
    """

    attempt: str
    code: int
    stopped: str
    bad: tuple[str, ...]
    reached: str
    saved: str
    done: bool
    lost: str = ""

    @property
    def how(self) -> str:
        """How it failed, in words."""
        servers = f" after its servers had ended with exit code {self.lost}" if self.lost else ""
        return f"with exit code {self.code}{servers}"


def verdict(before: Sequence[Attempt], now: Attempt, limits: Limits) -> tuple[Verdict, str]:
    """What becomes of the job, and why.

    A stop that saved something new is progress. One that did not counts as a failure: a time limit that is too short
    for a step would else be met for ever.

    Args:
        before: earlier attempts of the submission, oldest first.
        now: the one that ended.
        limits: what is allowed.
    """
    decided, reason = _decided(before, now, limits)
    if decided == "again" and not limits.requeue:
        return "left", f"{reason}; requeue.enabled=false leaves the run to the next job"
    return decided, reason


def _decided(before: Sequence[Attempt], now: Attempt, limits: Limits) -> tuple[Verdict, str]:
    attempts = [*before, now]
    if now.done or now.code == 0:
        return "done", "the run came to its end"
    if now.stopped == "USR2":
        return "stop", "the job was cancelled; the run goes on from its checkpoint where it is submitted again"
    if now.bad:
        nodes = {node for attempt in attempts for node in attempt.bad}
        if len(nodes) > limits.excluded:
            names = ", ".join(sorted(nodes))
            return "stop", f"{len(nodes)} nodes are bad ({names}), more than health.excluded={limits.excluded}"
        return "again", f"without {', '.join(now.bad)}"
    failed_at = _failures(attempts)
    if failed_at[-1] is None:
        return "again", f"stopped by {now.stopped}, and saved"
    if now.code == _USER_ERROR and all(attempt.bad for attempt in before):
        return "stop", "the recipe, its data or its folder cannot be used; the job's output says why"
    at = failed_at[-1] or "the start"
    row = _row(failed_at)
    if row >= limits.same_step:
        return "stop", f"{row} failures in a row at {at}, the last {now.how}; the job's output says why"
    total = sum(place is not None for place in failed_at)
    if total >= limits.failures:
        return "stop", f"{total} failures, the last {now.how}; the job's output says why"
    return "again", f"failed at {at} {now.how}"


def _failures(attempts: Sequence[Attempt]) -> list[str | None]:
    """Where each attempt failed; None for those that did not. Attempts that met bad nodes are left out."""
    places: list[str | None] = []
    saved = ""
    for attempt in attempts:
        if not attempt.bad:
            progressed = attempt.stopped != "" and attempt.saved > saved
            places.append(None if progressed else attempt.reached)
        saved = attempt.saved
    return places


def _row(failed_at: Sequence[str | None]) -> int:
    """How many attempts in a row, up to the last, failed where the last did."""
    row = 0
    for place in reversed(failed_at):
        if place != failed_at[-1]:
            break
        row += 1
    return row
