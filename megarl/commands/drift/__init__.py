"""`megarl drift`: what the log-probs of trainer and engine say of each other."""

import argparse

from megarl.commands.command import Command
from megarl.commands.drift import budget, compare, diagnose, measure, report, selftest

HELP = "look into the drift between trainer and engine"
PARTS: dict[str, Command] = {
    "report": report,
    "compare": compare,
    "diagnose": diagnose,
    "measure": measure,
    "budget": budget,
    "selftest": selftest,
}
"""By their names on the command line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares its own commands and their arguments."""
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, part in PARTS.items():
        part.add_arguments(parts.add_parser(name, help=part.HELP))


def run(arguments: argparse.Namespace) -> int:
    """Runs one of them and returns the exit code."""
    return PARTS[arguments.part].run(arguments)
