"""`megarl drift compare DUMP DUMP`."""

import argparse
from pathlib import Path

HELP = "two dumps side by side, with a bootstrap test of their difference"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("first", metavar="DUMP", type=Path, help="dump file, folder of dumps, or folder of a run")
    parser.add_argument("second", metavar="DUMP", type=Path, help="what it is compared with")
    parser.add_argument("--resamples", type=int, default=2000, metavar="N", help="of the bootstrap; 2000 if not given")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the bootstrap; 0 if not given")


def run(arguments: argparse.Namespace) -> int:
    """Prints the comparison; the exit code is 0."""
    import torch

    from megarl.dumps.compare import compare

    # the same sums on every machine, and threads that wait for each other gain nothing on numbers as few as these
    torch.set_num_threads(1)
    compare(arguments.first, arguments.second, resamples=arguments.resamples, seed=arguments.seed)
    return 0
