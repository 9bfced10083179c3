"""`megarl drift budget RECIPE`."""

import argparse
from pathlib import Path

from megarl.commands.command import add_recipe
from megarl.commands.output import check_outputs
from megarl.config.errors import UserError

HELP = "decompose a recipe's drift into precision, kernel, quantisation and staleness, above its floor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_recipe(parser)
    parser.add_argument("--responses", type=int, default=64, metavar="N", help="to generate and score; 64")
    parser.add_argument(
        "--updates", type=int, metavar="N", help="RL steps between the engine's weights and the trainer's; the recipe's"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write it for megarl drift report too")


def run(arguments: argparse.Namespace) -> int:
    """Prints the budget; the exit code is 0."""
    from megarl.config.load import load_recipe

    if arguments.responses < 2:
        raise UserError(f"--responses={arguments.responses} is too few for a standard error; give a number from 2.")
    if arguments.updates is not None and arguments.updates < 0:
        raise UserError(f"--updates={arguments.updates} is below 0; give the steps that the engine lags behind.")
    check_outputs({"--json": arguments.json}, [Path(arguments.recipe)])
    recipe = load_recipe(arguments.recipe, arguments.overrides).recipe
    from megarl.dumps.budget import write_budget
    from megarl.dumps.report.budget import show
    from megarl.launch import preflight
    from megarl.loop.budget import budget

    preflight(recipe, writes=False)
    updates = recipe.rl.asynchrony.lookahead if arguments.updates is None else arguments.updates
    found = budget(recipe, arguments.responses, updates)
    show(found)
    if arguments.json is not None:
        write_budget(arguments.json, found)
    return 0
