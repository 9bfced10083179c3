"""The attempts at a run, and why it was given up: small files in the run's folder."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from megarl.config.errors import RunFolderError
from megarl.observe.files import JsonlFile, read_json, read_jsonl_tolerant, write_json_atomic
from megarl.submit.verdict import Attempt, Limits, Verdict, verdict

FOLDER = "slurm"
"""Of these files, in the run's folder."""
STOPPED = "stopped.json"
_ATTEMPTS = "attempts.jsonl"


def given_up(run: Path, submission: str) -> str | None:
    """Why no more attempts are made under this submission; None where they are."""
    stopped = read_json(run / FOLDER / STOPPED)
    return str(stopped["reason"]) if stopped.get("submission") == submission else None


def why_stopped(run: Path) -> str | None:
    """Why the newest submission that was given up was; None where none was."""
    reason = read_json(run / FOLDER / STOPPED).get("reason")
    return None if reason is None else str(reason)


def record(run: Path, submission: str, now: Attempt, limits: Limits) -> tuple[Verdict, str]:
    """Writes an attempt down that ended, and what becomes of the job.

    Returns:
        The verdict and its reason.
    """
    folder = run / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    before = _of(run, submission)
    decided, reason = verdict(before, now, limits)
    log = JsonlFile(folder / _ATTEMPTS)
    log.append({"submission": submission, **asdict(now), "verdict": decided, "reason": reason})
    log.close()
    if decided == "stop":
        write_json_atomic(folder / STOPPED, {"submission": submission, "attempt": now.attempt, "reason": reason})
    return decided, reason


def excluded(run: Path, submission: str) -> list[str]:
    """The nodes that this submission's attempts found bad, in that order."""
    return list(dict.fromkeys(node for attempt in _of(run, submission) for node in attempt.bad))


def _of(run: Path, submission: str) -> list[Attempt]:
    path = run / FOLDER / _ATTEMPTS
    return [_attempt(line, path) for line in read_jsonl_tolerant(path) if line.get("submission") == submission]


def _attempt(line: dict[str, Any], path: Path) -> Attempt:
    held = {name: value for name, value in line.items() if name not in ("submission", "verdict", "reason")}
    try:
        return Attempt(**{**held, "bad": tuple(held["bad"])})
    except (KeyError, TypeError) as error:
        told = f"{path} has a line that tells of no attempt of this release's ({error})"
        raise RunFolderError(f"{told}; delete the line.") from error
