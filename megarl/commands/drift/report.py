"""`megarl drift report DUMP`."""

import argparse
from pathlib import Path

from megarl.commands.output import check_outputs

HELP = "statistics of a dump, a verdict, and a page of HTML with pictures"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("dump", metavar="DUMP", type=Path, help="dump file, folder of dumps, or folder of a run")
    parser.add_argument("--html", type=Path, default=Path("drift.html"), metavar="FILE", help="drift.html if not given")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as JSON too")
    parser.add_argument(
        "--budget", type=Path, metavar="FILE", help="of megarl drift budget; drift_budget.json beside the dump"
    )
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="for a dump without the texts of its tokens")


def run(arguments: argparse.Namespace) -> int:
    """Writes the report; the exit code is 0."""
    read = [arguments.dump, *([] if arguments.budget is None else [arguments.budget])]
    check_outputs({"--html": arguments.html, "--json": arguments.json}, read)
    import torch

    from megarl.dumps.report.write import write_report

    # the same sums on every machine, and threads that wait for each other gain nothing on numbers as few as these
    torch.set_num_threads(1)
    write_report(
        arguments.dump,
        arguments.html,
        tokenizer=arguments.tokenizer,
        as_json=arguments.json,
        budget=arguments.budget,
    )
    return 0
