"""`megarl drift`: what the log-probs of trainer and engine say of each other."""

import argparse
from typing import Any, Protocol

from megarl.commands.drift import compare, diagnose, measure, report, selftest


class Part(Protocol):
    """A command of `megarl drift`: a module of this folder."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares its arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Runs it and returns the exit code."""


PARTS: dict[str, Part] = {
    "report": report,
    "compare": compare,
    "diagnose": diagnose,
    "measure": measure,
    "selftest": selftest,
}
"""By their names on the command line."""


def add_parsers(commands: Any) -> None:
    """Adds `drift` and its own commands. Args: commands: what argparse's `add_subparsers` returned."""
    drift = commands.add_parser("drift", help="look into the drift between trainer and engine")
    parts = drift.add_subparsers(dest="part", required=True, metavar="PART")
    for name, part in PARTS.items():
        part.add_arguments(parts.add_parser(name, help=part.HELP))


def run(arguments: argparse.Namespace) -> int:
    """Runs one of them and returns the exit code."""
    return PARTS[arguments.part].run(arguments)
