"""What every command is, and the arguments that several of them share."""

import argparse
from pathlib import Path
from typing import Protocol


class Command(Protocol):
    """A command: a module of this package. It imports what it runs when it runs, so that the help needs no torch."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares its arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Runs it and returns the exit code. Raises: UserError: a mistake of the user's."""


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Declares `recipe`, a path as text, and `overrides`, a list of `key=value`."""
    parser.add_argument("recipe", metavar="RECIPE", help="recipe file, YAML")
    parser.add_argument("overrides", metavar="key=value", nargs="*", default=[], help="override of a key of the recipe")


def add_logs(parser: argparse.ArgumentParser) -> None:
    """Declares `logs`, the folder that `megarl submit` notes its jobs in."""
    parser.add_argument("--logs", metavar="FOLDER", type=Path, default=Path("runs/slurm"), help="`logs` of the profile")
