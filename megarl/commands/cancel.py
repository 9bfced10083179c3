"""`megarl cancel JOB ...`."""

import argparse

from megarl.commands.command import add_logs

HELP = "have jobs save their runs and end"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("jobs", metavar="JOB", nargs="+", help="id of a job, or ID_TASK of an array's")
    parser.add_argument("--now", action="store_true", help="have SLURM end them, which gives them less time to save")
    add_logs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Cancels the jobs one by one; the exit code is 0."""
    from megarl.submit.jobs import cancel

    for job in arguments.jobs:
        cancel(arguments.logs, job, now=arguments.now)
    return 0
