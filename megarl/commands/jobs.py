"""`megarl jobs`."""

import argparse

from megarl.commands.command import add_logs

HELP = "list the jobs that were submitted, and how far their runs have come"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--follow", action="store_true", help="print what changes, until none waits or runs")
    add_logs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the jobs; the exit code is 0."""
    from megarl.submit.jobs import show_jobs

    show_jobs(arguments.logs, follow=arguments.follow)
    return 0
