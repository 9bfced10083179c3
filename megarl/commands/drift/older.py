"""Earlier weights as an option of a command."""

import argparse
from pathlib import Path


def add_older(parser: argparse.ArgumentParser, than: str) -> None:
    """Declares `older`, a list of folders in Hugging Face layout. Args: than: whose weights they are older than."""
    parser.add_argument(
        "--older",
        type=Path,
        metavar="FOLDER",
        nargs="+",
        action="extend",
        default=[],
        help=f"weights before {than}, newest first",
    )
