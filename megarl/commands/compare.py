"""`megarl compare RUN ...`."""

import argparse
from pathlib import Path

HELP = "print reward, pass@k, drift and speed of runs side by side"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="folder of a run")


def run(arguments: argparse.Namespace) -> int:
    """Prints the table; the exit code is 0."""
    from megarl.observe.compare import compare

    compare(arguments.runs)
    return 0
