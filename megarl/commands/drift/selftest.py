"""`megarl drift selftest`."""

import argparse

from megarl.config.errors import UserError

HELP = "plant every fault in small models, and check that diagnose names it first"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="cases of each fault in each precision; 5")
    parser.add_argument("--clean", type=int, default=40, metavar="N", help="cases without a fault; 40")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="cases at once; 2")


def run(arguments: argparse.Namespace) -> int:
    """Prints a table; the exit code is 1 where a fault was missed or a clean case raised an alarm."""
    for name, least in (("seeds", 0), ("clean", 0), ("processes", 1)):
        if getattr(arguments, name) < least:
            raise UserError(f"--{name}={getattr(arguments, name)} is below {least}; give a larger number.")
    from megarl.diagnose.selftest.run import selftest

    return selftest(arguments.seeds, arguments.clean, arguments.processes)
