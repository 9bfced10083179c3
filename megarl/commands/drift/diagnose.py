"""`megarl drift diagnose DUMP [--model FOLDER]`."""

import argparse
from pathlib import Path

from megarl.commands.drift.older import add_older
from megarl.commands.drift.sampling import check_sampling
from megarl.config.errors import UserError

HELP = "name the cause of a dump's drift, from the dump alone or by experiments on the trainer's model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("dump", metavar="DUMP", type=Path, help="dump file, folder of dumps, or folder of a run")
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="weights that the trainer scored with, in Hugging Face layout"
    )
    add_older(parser, "those")
    parser.add_argument(
        "--dtype", choices=("fp32", "bf16", "fp16"), help="the trainer's precision; what the dump says if not given"
    )
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="its begin token is tried before prompts")
    parser.add_argument(
        "--responses", type=int, metavar="N", help="responses that are looked at; all, or the first 64 with --model"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="that was sampled at, where the dump has none")
    parser.add_argument("--top-p", type=float, metavar="P", help="likewise; 1 if not given")
    parser.add_argument("--top-k", type=int, metavar="K", help="likewise; 0, for all, if not given")
    parser.add_argument("--stop-token-id", type=int, metavar="ID", help="what ends a response, where the dump has none")


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings; the exit code is 1 where there is one."""
    if arguments.responses is not None and arguments.responses < 1:
        raise UserError(f"--responses={arguments.responses} leaves nothing to look at; give a number from 1.")
    if arguments.older and arguments.model is None:
        raise UserError("--older has weights from before --model, which is missing; give it.")
    check_sampling(arguments.temperature, arguments.top_p, arguments.top_k)
    if (stop := arguments.stop_token_id) is not None and stop < 0:
        raise UserError(f"--stop-token-id={stop} is below 0; give the id of the token that ends a response.")
    from megarl.diagnose.dump import diagnose_dump
    from megarl.dumps.responses import Sampled

    return diagnose_dump(
        arguments.dump,
        arguments.model,
        arguments.older,
        dtype=arguments.dtype,
        tokenizer=arguments.tokenizer,
        responses=arguments.responses,
        asked=Sampled(arguments.temperature, arguments.top_p, arguments.top_k, arguments.stop_token_id),
    )
