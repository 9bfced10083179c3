"""`megarl jobs` and `megarl cancel`: the jobs that were submitted from a folder."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from megarl.config.errors import UserError
from megarl.submit import records, slurm
from megarl.submit.attempts import why_stopped
from megarl.submit.progress import is_done, reached
from megarl.submit.records import Record

_HEADER = ("job", "name", "state", "time", "nodes", "step", "run")
Row = tuple[str, str, str, str, str, str, str]


def show_jobs(logs: Path, *, follow: bool, every_s: float = 5.0) -> None:
    """Prints every submission's jobs and how far their runs have come.

    Args:
        logs: the profile's `logs`.
        follow: prints again whatever changed, until no job waits or runs.
        every_s: seconds between two looks.

    Raises:
        UserError: nothing was submitted from here, or SLURM does not answer.
    """
    known = records.read(logs)
    if not known:
        raise UserError(f"{logs} has no record of a job; name the `logs` folder of the profile with --logs.")
    before: list[Row] = []
    while True:
        queued = slurm.queue([job for record in known for job in record.jobs])
        rows = [row for record in known for row in rows_of(record, queued)]
        if rows != before:
            _print(rows)
        before = rows
        if not follow or not queued:
            return
        time.sleep(every_s)


def rows_of(record: Record, queued: Sequence[slurm.Queued]) -> list[Row]:
    """One row for each of the record's jobs that wait or run; one a run where none do."""
    mine = [job for job in queued if job.leader in record.jobs or job.job.partition("+")[0] in record.jobs]
    rows: list[Row] = []
    for job in mine:
        runs = _runs_of(record, job.job)
        state = f"{job.state} ({job.reason})" if job.reason not in ("None", "") else job.state
        steps = ", ".join(reached(run) or "-" for run in runs)
        where = job.where or job.nodes
        rows.append((job.job, record.name, state, f"{job.elapsed}/{job.limit}", where, steps, _shown(runs)))
    if mine:
        return rows
    return [
        (record.jobs[-1], record.name, _ended(Path(run)), "-", "-", reached(Path(run)) or "-", _shown([Path(run)]))
        for run in record.runs
    ]


def cancel(logs: Path, job: str, *, now: bool) -> None:
    """Cancels a job that was submitted from this folder, and the rest of its chain.

    A running one is asked to save and end; a waiting one is taken out of the queue.

    Args:
        logs: the profile's `logs`.
        job: id, also of one task of an array.
        now: has SLURM end it instead, which gives it KillWait (30 s by default) to save.

    Raises:
        UserError: the job is not one of these, or SLURM does not answer.
    """
    leader = job.partition("_")[0]
    record = next((record for record in records.read(logs) if leader in record.jobs), None)
    if record is None:
        raise UserError(f"{job} is no job that {logs} has a record of; see `megarl jobs`, or use scancel.")
    wanted = [job] if "_" in job else list(record.jobs)
    # the last link first: it would start when the one before it ends
    for name in reversed(wanted):
        mine = [line for line in slurm.queue([name.partition("_")[0]]) if _is(line, name)]
        if not now and any(line.state == "RUNNING" for line in mine):
            slurm.signal(name, "USR2")
            if any(line.state == "PENDING" for line in mine if "+" not in line.job):
                _cancel_waiting(mine)
            print(f"{name}: told to save and end")
        elif mine:
            slurm.cancel(name)
            print(f"{name}: cancelled")


def _cancel_waiting(lines: Sequence[slurm.Queued]) -> None:
    for line in lines:
        if line.state == "PENDING":
            slurm.cancel(line.job)


def _is(line: slurm.Queued, name: str) -> bool:
    return line.job == name if "_" in name else (line.leader == name or line.job.partition("+")[0] == name)


def _runs_of(record: Record, job: str) -> list[Path]:
    task = job.partition("_")[2]
    if task.isdecimal() and int(task) < len(record.runs):
        return [Path(record.runs[int(task)])]
    return [Path(run) for run in record.runs]


def _ended(run: Path) -> str:
    if is_done(run):
        return "done"
    reason = why_stopped(run)
    return f"ended: {reason}" if reason else "ended before the run's end"


def _shown(runs: Sequence[Path]) -> str:
    return ", ".join(os.path.relpath(run) for run in runs)


def _print(rows: Sequence[Row]) -> None:
    console = Console()
    if not console.is_terminal:
        for row in rows:
            print("\t".join(row), flush=True)
        return
    table = Table(*_HEADER)
    for row in rows:
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    console.print(table)
