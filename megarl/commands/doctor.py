"""`megarl doctor`."""

import argparse

HELP = "report what this machine has, and how to get what it lacks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments: none."""


def run(arguments: argparse.Namespace) -> int:
    """Prints what is there; the exit code is 1 where the demo lacks something."""
    from megarl.doctor import doctor

    return doctor()
