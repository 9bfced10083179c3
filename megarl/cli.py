"""The command `megarl`."""

import argparse
import math
import os
import signal
import sys
from pathlib import Path

from megarl import __version__
from megarl.commands import drift
from megarl.config.errors import USER_ERROR, UserError


def main(argv: list[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments after the program's name; those of the process if None.

    Returns:
        The exit code: 0, or 1 where `doctor` finds something missing, what `plan` plans does not fit or the engine that
        `sync-check` looks at has other weights, or 2 for a mistake of the user's, which is printed as one sentence.
        Other exceptions are bugs and keep their traceback.
    """
    arguments = _parse(argv)
    try:
        return _COMMANDS[arguments.command](arguments)
    except KeyboardInterrupt:
        print("megarl: stopped; nothing was started", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # what read our output is gone; Python would complain again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UserError as error:
        # all ranks of a world find the same mistake; one tells it
        if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
            print(f"megarl: error: {error}", file=sys.stderr)
        return USER_ERROR


def _train(arguments: argparse.Namespace) -> int:
    from megarl.config.load import load_recipe

    loaded = load_recipe(arguments.recipe, arguments.overrides)
    # Torch and Megatron load here, seconds after a mistake in the recipe would have been reported.
    from megarl.launch import train

    return train(loaded, [arguments.recipe, *arguments.overrides])


def _sync_check(arguments: argparse.Namespace) -> int:
    from megarl.config.load import load_recipe

    loaded = load_recipe(arguments.recipe, arguments.overrides)
    from megarl.launch import sync_check

    return sync_check(loaded, [arguments.recipe, *arguments.overrides])


def _config(arguments: argparse.Namespace) -> int:
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


def _plan(arguments: argparse.Namespace) -> int:
    from megarl.config.load import load_recipe
    from megarl.plan.command import plan

    recipe = load_recipe(arguments.recipe, arguments.overrides).recipe
    return plan(recipe, gpu_memory=arguments.gpu_memory, vocab_size=arguments.vocab_size, as_json=arguments.json)


def _convert(arguments: argparse.Namespace) -> int:
    if not 0 < arguments.shard_gb < math.inf:
        raise UserError(f"--shard-gb={arguments.shard_gb:g} is no number above 0; give a size in GB, such as 5.")
    from megarl.loop.convert import convert

    convert(arguments.source, arguments.target, round(arguments.shard_gb * 1e9))
    print(f"megarl: wrote {arguments.target}")
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from megarl.observe.compare import compare

    compare(arguments.runs)
    return 0


def _submit(arguments: argparse.Namespace) -> int:
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


def _jobs(arguments: argparse.Namespace) -> int:
    from megarl.submit.jobs import show_jobs

    show_jobs(arguments.logs, follow=arguments.follow)
    return 0


def _cancel(arguments: argparse.Namespace) -> int:
    from megarl.submit.jobs import cancel

    for job in arguments.jobs:
        cancel(arguments.logs, job, now=arguments.now)
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    from megarl.config.load import load_recipe

    recipe = load_recipe(arguments.recipe, arguments.overrides).recipe
    from megarl.rollout.serve import serve

    return serve(recipe, arguments.announce)


def _doctor(_: argparse.Namespace) -> int:
    from megarl.doctor import doctor

    return doctor()


_COMMANDS = {
    "train": _train,
    "config": _config,
    "plan": _plan,
    "convert": _convert,
    "compare": _compare,
    "sync-check": _sync_check,
    "drift": drift.run,
    "submit": _submit,
    "jobs": _jobs,
    "cancel": _cancel,
    "serve": _serve,
    "doctor": _doctor,
}


def _add_slurm(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Adds the commands about SLURM's jobs, and returns the one that takes a recipe."""
    submit = commands.add_parser("submit", help="run a recipe as a job under SLURM")
    submit.add_argument("--profile", metavar="FILE", type=Path, required=True, help="where and how, YAML")
    submit.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a key of the profile")
    submit.add_argument("--seeds", metavar="LIST", help="one run a seed, such as 0,1,2 or 0-2, as an array")
    submit.add_argument(
        "--sweep", metavar="KEY=[A,B]", action="append", default=[], help="one run a value, as an array"
    )
    submit.add_argument(
        "--chain", metavar="N", type=int, default=1, help="N jobs, each going on where the one before ended early"
    )
    submit.add_argument("--dependency", metavar="WHAT", help="what the job waits for, such as afterok:123")
    submit.add_argument("--dry-run", action="store_true", help="print the script, and submit nothing")
    jobs = commands.add_parser("jobs", help="list the jobs that were submitted, and how far their runs have come")
    jobs.add_argument("--follow", action="store_true", help="print what changes, until none waits or runs")
    cancel = commands.add_parser("cancel", help="have jobs save their runs and end")
    cancel.add_argument("jobs", metavar="JOB", nargs="+", help="id of a job, or ID_TASK of an array's")
    cancel.add_argument("--now", action="store_true", help="have SLURM end them, which gives them less time to save")
    for command in (jobs, cancel):
        command.add_argument(
            "--logs", metavar="FOLDER", type=Path, default=Path("runs/slurm"), help="`logs` of the profile"
        )
    return submit


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="megarl", description="Reinforcement learning for Megatron-core.")
    parser.add_argument("--version", action="version", version=f"megarl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="train as a recipe says, or resume the run in its output folder")
    config = commands.add_parser("config", help="print a recipe in full, with the origin of every value")
    config.add_argument("--docs", action="store_true", help="print the meaning of every key too")
    plan = commands.add_parser("plan", help="print what a recipe needs: parameters, memory, communication")
    plan.add_argument(
        "--gpu-memory", type=float, default=80.0, metavar="GiB", help="memory of one GPU; 80 if not given"
    )
    plan.add_argument("--vocab-size", type=int, metavar="N", help="tokens, in place of the recipe's tokenizer's")
    plan.add_argument("--json", action="store_true", help="print JSON, in bytes")
    check = commands.add_parser("sync-check", help="prove that weights reach the engine, and time each way there")
    convert = commands.add_parser(
        "convert", help="write a run's policy, or a model, as a folder in Hugging Face layout"
    )
    convert.add_argument("source", metavar="SOURCE", type=Path, help="run, checkpoint, or Hugging Face folder")
    convert.add_argument("target", metavar="TARGET", type=Path, help="new folder")
    convert.add_argument(
        "--shard-gb", type=float, default=5.0, metavar="GB", help="largest file, in 10^9 bytes; 5 if not given"
    )
    compared = commands.add_parser("compare", help="print reward, pass@k, drift and speed of runs side by side")
    compared.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="folder of a run")
    drift.add_parsers(commands)
    serve = commands.add_parser("serve", help="run one server of a recipe's engine for a trainer on another machine")
    serve.add_argument("--announce", metavar="FOLDER", type=Path, required=True, help="where its address is written")
    commands.add_parser("doctor", help="report what this machine has, and how to get what it lacks")
    submit = _add_slurm(commands)
    for command in (train, config, plan, check, serve, submit):
        command.add_argument("recipe", metavar="RECIPE", help="recipe file, YAML")
        command.add_argument(
            "overrides", metavar="key=value", nargs="*", default=[], help="override of a key of the recipe"
        )
    # argparse ends a list of positional arguments at the first option; overrides may go on behind it.
    arguments, rest = parser.parse_known_args(argv)
    if any(word.startswith("-") for word in rest) or (rest and "overrides" not in arguments):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments
