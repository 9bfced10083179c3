"""`megarl config RECIPE`."""

import argparse
import sys

from megarl.commands.command import add_recipe

HELP = "print a recipe in full, with the origin of every value"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--docs", action="store_true", help="print the meaning of every key too")
    add_recipe(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the recipe, and warnings to stderr; the exit code is 0."""
    from megarl.config.advice import warnings_of
    from megarl.config.load import load_recipe
    from megarl.config.show import render

    loaded = load_recipe(arguments.recipe, arguments.overrides)
    if loaded.recipe.data.source == "chain_arithmetic":
        # pure Python; the other sources load packages and files, which are looked at by `train` only
        from megarl.data.chain_arithmetic import ChainArithmetic

        ChainArithmetic(loaded.recipe.seed, loaded.recipe.data)
    print(render(loaded, docs=arguments.docs), end="")
    for warning in warnings_of(loaded.recipe):
        print(f"megarl: warning: {warning}", file=sys.stderr)
    return 0
