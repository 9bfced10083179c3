"""SLURM's commands."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megarl.submit.profile import ProfileError

_TIMEOUT_S = 60.0
_FIELDS = ("%i", "%T", "%M", "%l", "%D", "%N", "%r", "%F", "%A")


@dataclass(frozen=True)
class Queued:
    """One line of squeue.

    Attributes:
        job: id, with its task's for an array, or its component's for a heterogeneous job.
        state: such as RUNNING.
        elapsed: time that it has run.
        limit: its time limit.
        nodes: number of nodes.
        where: the nodes.
        reason: why it waits.
        leader: id of the array, or of the job itself.
    """

    job: str
    state: str
    elapsed: str
    limit: str
    nodes: str
    where: str
    reason: str
    leader: str


def submit(script: Path, dependency: str | None) -> str:
    """Hands a script to sbatch.

    Args:
        script: the file.
        dependency: as sbatch's --dependency takes it.

    Returns:
        The job's id.

    Raises:
        ProfileError: SLURM is not here, or refuses the job.
    """
    command = ["sbatch", "--parsable"]
    if dependency is not None:
        command += [f"--dependency={dependency}", "--kill-on-invalid-dep=yes"]
    # absolute: a folder may be called like an option
    return _run([*command, str(script.absolute())]).strip().partition(";")[0]


def queue(jobs: Sequence[str]) -> list[Queued]:
    """Which of these jobs wait or run. Jobs that SLURM knows no more are left out.

    Raises:
        ProfileError: SLURM is not here, or does not answer.
    """
    # asked for all of the user's: squeue fails where one of several ids is no longer known
    output = _run(["squeue", "--me", "--noheader", f"--format={'|'.join(_FIELDS)}"])
    found = []
    for line in output.splitlines():
        words = line.strip().split("|")
        if len(words) == len(_FIELDS) and (words[7] in jobs or words[0].partition("+")[0] in jobs):
            found.append(Queued(*words[:8]))
    return found


def signal(job: str, name: str) -> None:
    """Sends a signal to the script of a running job, which passes it on.

    Raises:
        ProfileError: SLURM is not here, or refuses.
    """
    _run(["scancel", "--batch", f"--signal={name}", job])


def cancel(job: str) -> None:
    """Ends a job, waiting or running.

    Raises:
        ProfileError: SLURM is not here, or refuses.
    """
    _run(["scancel", job])


def _run(command: Sequence[str]) -> str:
    if shutil.which(command[0]) is None:
        raise ProfileError(
            f"{command[0]} is not on this machine's PATH; go to a machine of the cluster, or see docs/launch.md."
        )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ProfileError(f"{command[0]} did not answer within {_TIMEOUT_S:g} s; try again later.") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ProfileError(f"{command[0]} refused: {said.rstrip('.')}; mend the profile, or ask the cluster's staff.")
    return done.stdout
