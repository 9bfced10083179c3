"""The command `megarl`: parsing, and how errors end it."""

import argparse
import os
import signal
import sys

from megarl import __version__
from megarl.commands import COMMANDS
from megarl.config.errors import USER_ERROR, UserError


def main(argv: list[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments after the program's name; those of the process if None.

    Returns:
        The command's exit code: 0, or 1 where what it looked for is missing, does not fit or differs; 2 for a mistake
        of the user's, which is printed as one sentence. Other exceptions are bugs and keep their traceback.
    """
    arguments = _parse(argv)
    try:
        return COMMANDS[arguments.command].run(arguments)
    except KeyboardInterrupt:
        print("megarl: stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # what read our output is gone; Python would complain again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UserError as error:
        # all ranks of a world find the same mistake; one tells it
        if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
            print(f"megarl: error: {error}", file=sys.stderr)
        return USER_ERROR


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="megarl", description="Reinforcement learning for Megatron-core.")
    parser.add_argument("--version", action="version", version=f"megarl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=command.HELP))
    # argparse ends a list of positional arguments at the first option; overrides may go on behind it.
    arguments, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") for word in rest) or (rest and "overrides" not in arguments):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments
