"""`megarl submit`: a recipe and a profile become a job."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from megarl.config.errors import UserError
from megarl.observe.files import write_atomic
from megarl.submit import records, slurm
from megarl.submit.job import build_job
from megarl.submit.load import load_profile
from megarl.submit.profile import ProfileError
from megarl.submit.render import render
from megarl.submit.shell import directive
from megarl.submit.tasks import tasks


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        recipe: path of the recipe's file.
        overrides: `key=value` arguments of the recipe.
        profile: path of the profile's file.
        settings: `key=value` arguments of the profile.
        seeds: see `tasks.tasks`.
        sweeps: see `tasks.tasks`.
        chain: jobs, each of which goes on where the one before it did not come to the run's end.
        dependency: what the first of them waits for, as sbatch's --dependency takes it.
        dry_run: whether the script is printed and nothing submitted.
    """

    recipe: str
    overrides: Sequence[str]
    profile: Path
    settings: Sequence[str] = ()
    seeds: str | None = None
    sweeps: Sequence[str] = ()
    chain: int = 1
    dependency: str | None = None
    dry_run: bool = False


def submit(request: Request) -> None:
    """Submits the job, or prints its script.

    Raises:
        UserError: recipe, profile or command line cannot be right, or SLURM refuses; nothing was submitted then.
    """
    profile = load_profile(request.profile, request.settings)
    runs = tasks(request.recipe, request.overrides, request.seeds, request.sweeps)
    if request.chain < 1:
        raise UserError(f"--chain {request.chain} is no number of jobs; give 1 or more.")
    if request.chain > 1 and len(runs) > 1:
        raise UserError(
            f"--chain {request.chain} with {len(runs)} runs is no chain, as SLURM joins arrays as wholes; "
            "leave one of them out: jobs requeue themselves."
        )
    if request.dependency is not None:
        directive("--dependency", request.dependency)
    submission = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    job = build_job(request.recipe, runs, profile, submission, os.environ)
    script = render(job, profile, request.profile.resolve().parent / profile.templates)
    if request.dry_run:
        print(script, end="")
        return
    logs = Path(profile.logs)
    try:
        logs.mkdir(parents=True, exist_ok=True)
        file = logs / f"{job.name}-{submission}.sbatch"
        write_atomic(file, script.encode())
    except OSError as error:
        raise ProfileError(f"logs={logs} cannot be written ({error.strerror}); name another folder.") from error
    ids = _chained(file, request)
    folders = tuple(str(Path(run.folder).absolute()) for run in job.runs)
    records.write(logs, records.Record(submission, str(job.name), tuple(ids), folders, str(file)))
    print(f"submitted {' '.join(ids)}: {len(runs)} run{'s' if len(runs) > 1 else ''}, script {file}")


def _chained(script: Path, request: Request) -> list[str]:
    """The ids of the chain's jobs; where one is refused, those before it are taken back."""
    ids: list[str] = []
    dependency = request.dependency
    try:
        for _ in range(request.chain):
            ids.append(slurm.submit(script, dependency))
            # the next link starts where this one ends before its run does
            dependency = f"afternotok:{ids[-1]}"
    except ProfileError:
        for job in reversed(ids):
            slurm.cancel(job)
        raise
    return ids
