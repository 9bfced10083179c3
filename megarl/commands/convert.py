"""`megarl convert SOURCE TARGET`."""

import argparse
import math
from pathlib import Path

from megarl.config.errors import UserError

HELP = "write a run's policy, or a model, as a folder in Hugging Face layout"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("source", metavar="SOURCE", type=Path, help="run, checkpoint, or Hugging Face folder")
    parser.add_argument("target", metavar="TARGET", type=Path, help="new folder")
    parser.add_argument("--shard-gb", type=float, default=5.0, help="largest file of weights, in GB of 10^9 bytes")


def run(arguments: argparse.Namespace) -> int:
    """Writes the folder; the exit code is 0."""
    if not 0 < arguments.shard_gb < math.inf:
        raise UserError(f"--shard-gb={arguments.shard_gb:g} is no number above 0; give a size in GB, such as 5.")
    from megarl.loop.convert import convert

    convert(arguments.source, arguments.target, round(arguments.shard_gb * 1e9))
    print(f"megarl: wrote {arguments.target}")
    return 0
