"""`megarl sync-check RECIPE`."""

import argparse

from megarl.commands.command import add_recipe

HELP = "prove that weights reach the engine, and time each way there"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_recipe(parser)


def run(arguments: argparse.Namespace) -> int:
    """Pushes weights and compares them; the exit code is 1 where the engine has others than the trainer."""
    from megarl.config.load import load_recipe

    loaded = load_recipe(arguments.recipe, arguments.overrides)
    # torch and Megatron take seconds to load: a mistake in the recipe is told before
    from megarl.launch import sync_check

    return sync_check(loaded, [arguments.recipe, *arguments.overrides])
