"""`megarl drift diagnose DUMP --model FOLDER`."""

import argparse
from pathlib import Path

HELP = "name the cause of a dump's drift, by experiments on the trainer's model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("dump", metavar="DUMP", type=Path, help="parquet file of a run's dumps")
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="weights that the trainer scored with, in Hugging Face layout"
    )
    parser.add_argument(
        "--older", type=Path, metavar="FOLDER", nargs="*", default=[], help="weights before those, newest first"
    )
    parser.add_argument(
        "--dtype", choices=("fp32", "bf16", "fp16"), help="the trainer's precision; what the dump says if not given"
    )
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="its begin token is tried before prompts")
    parser.add_argument(
        "--responses", type=int, default=64, metavar="N", help="responses that are looked at; the first 64"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings; the exit code is 1 where there is one."""
    from megarl.diagnose.dump import diagnose_dump

    return diagnose_dump(
        arguments.dump,
        arguments.model,
        arguments.older,
        dtype=arguments.dtype,
        tokenizer=arguments.tokenizer,
        responses=arguments.responses,
    )
