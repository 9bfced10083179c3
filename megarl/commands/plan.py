"""`megarl plan RECIPE`."""

import argparse

from megarl.commands.command import add_recipe

HELP = "print what a recipe needs: parameters, memory, communication"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "--gpu-memory", type=float, default=80.0, metavar="GiB", help="memory of one GPU; 80 if not given"
    )
    parser.add_argument("--vocab-size", type=int, metavar="N", help="tokens, in place of the recipe's tokenizer's")
    parser.add_argument("--json", action="store_true", help="print JSON, in bytes")
    add_recipe(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan; the exit code is 1 where the recipe does not fit the GPU."""
    from megarl.config.load import load_recipe
    from megarl.plan.command import plan

    recipe = load_recipe(arguments.recipe, arguments.overrides).recipe
    return plan(recipe, gpu_memory=arguments.gpu_memory, vocab_size=arguments.vocab_size, as_json=arguments.json)
