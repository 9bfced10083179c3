"""`megarl serve RECIPE --announce FOLDER`."""

import argparse
from pathlib import Path

from megarl.commands.command import add_recipe

HELP = "run one server of a recipe's engine for a trainer on another machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--announce", metavar="FOLDER", type=Path, required=True, help="where its address is written")
    add_recipe(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the server until it ends; the exit code is the server's."""
    from megarl.config.load import load_recipe

    recipe = load_recipe(arguments.recipe, arguments.overrides).recipe
    from megarl.rollout.serve import serve

    return serve(recipe, arguments.announce)
