"""`megarl train RECIPE`."""

import argparse

from megarl.commands.command import add_recipe

HELP = "train as a recipe says, or resume the run in its output folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_recipe(parser)


def run(arguments: argparse.Namespace) -> int:
    """Trains; the exit code is 0, 128 + signal where one stopped the run, or a worker's own where one failed."""
    from megarl.config.load import load_recipe

    loaded = load_recipe(arguments.recipe, arguments.overrides)
    # torch and Megatron take seconds to load: a mistake in the recipe is told before
    from megarl.launch import train

    return train(loaded, [arguments.recipe, *arguments.overrides])
