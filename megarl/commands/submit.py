"""`megarl submit RECIPE --profile FILE`."""

import argparse
from pathlib import Path

from megarl.commands.command import add_recipe

HELP = "run a recipe as a job under SLURM"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--profile", metavar="FILE", type=Path, required=True, help="where and how, YAML")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a key of the profile")
    parser.add_argument("--seeds", metavar="LIST", help="one run a seed, such as 0,1,2 or 0-2, as an array")
    parser.add_argument(
        "--sweep", metavar="KEY=[A,B]", action="append", default=[], help="one run a value, as an array"
    )
    parser.add_argument(
        "--chain", metavar="N", type=int, default=1, help="N jobs, each going on where the one before ended early"
    )
    parser.add_argument("--dependency", metavar="WHAT", help="what the job waits for, such as afterok:123")
    parser.add_argument("--dry-run", action="store_true", help="print the script, and submit nothing")
    add_recipe(parser)


def run(arguments: argparse.Namespace) -> int:
    """Submits the job, or prints its script; the exit code is 0."""
    from megarl.submit.command import Request, submit

    submit(
        Request(
            recipe=arguments.recipe,
            overrides=arguments.overrides,
            profile=arguments.profile,
            settings=arguments.set,
            seeds=arguments.seeds,
            sweeps=arguments.sweep,
            chain=arguments.chain,
            dependency=arguments.dependency,
            dry_run=arguments.dry_run,
        )
    )
    return 0
