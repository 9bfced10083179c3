"""`megarl drift measure RECIPE`."""

import argparse
import os
import tempfile
from pathlib import Path

from megarl.commands.command import add_recipe
from megarl.commands.drift.sampling import check_sampling
from megarl.config.errors import UserError

HELP = "have an engine generate, score with both sides, and name what makes them differ"
_ENGINES = ("embedded", "vllm", "sglang")
_SHARD_BYTES = 5_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_recipe(parser)
    parser.add_argument(
        "--trainer", type=Path, metavar="FOLDER", help="a run, a checkpoint, or a model in Hugging Face layout"
    )
    parser.add_argument("--engine", metavar="URL|NAME", help="a running server of the recipe's engine, or an engine")
    parser.add_argument(
        "--keep-weights", action="store_true", help="of a running server: it answers with the weights that it has"
    )
    parser.add_argument(
        "--older",
        type=Path,
        metavar="FOLDER",
        nargs="+",
        action="extend",
        default=[],
        help="weights before the trainer's, newest first",
    )
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help="a prompt a line, JSONL or parquet; or the recipe's"
    )
    parser.add_argument("--responses", type=int, default=64, metavar="N", help="to generate; 64")
    parser.add_argument("--engine-temperature", type=float, metavar="T", help="asked of the engine, not of the trainer")
    parser.add_argument("--engine-top-p", type=float, metavar="P", help="likewise")
    parser.add_argument("--engine-top-k", type=int, metavar="K", help="likewise")


def run(arguments: argparse.Namespace) -> int:
    """Prints the drift, its floor and its causes; the exit code is 1 where there is a cause."""
    from megarl.config.load import load_recipe
    from megarl.config.yaml_text import format_value

    _check(arguments)
    overrides = list(arguments.overrides)
    if arguments.engine in _ENGINES:
        overrides.append(f"rollout.engine={arguments.engine}")
    elif arguments.engine is not None:
        overrides.append(f"engine.urls={format_value([arguments.engine])}")
    with tempfile.TemporaryDirectory(prefix="megarl-trainer-") as folder:
        if arguments.trainer is not None:
            weights = arguments.trainer
            if not os.path.isfile(weights / "config.json"):
                from megarl.loop.convert import convert

                convert(arguments.trainer, weights := Path(folder) / "model", _SHARD_BYTES, name="--trainer")
            overrides.append(f"model.init_from={format_value(str(weights))}")
        loaded = load_recipe(arguments.recipe, overrides)
        if arguments.keep_weights and not loaded.recipe.engine.urls:
            raise UserError("--keep-weights is of a running server, and engine.urls is empty; give --engine=URL.")
        from megarl.launch import preflight
        from megarl.loop.measure import measure
        from megarl.loop.measured_prompts import Asked

        preflight(loaded.recipe, writes=False)
        return measure(
            loaded.recipe,
            Asked(
                arguments.prompts,
                arguments.responses,
                arguments.engine_temperature,
                arguments.engine_top_p,
                arguments.engine_top_k,
                tuple(arguments.older),
                arguments.keep_weights,
            ),
        )


def _check(arguments: argparse.Namespace) -> None:
    """Refuses what no engine can be asked for, before anything is started."""
    if arguments.responses < 1:
        raise UserError(f"--responses={arguments.responses} leaves nothing to measure; give a number from 1.")
    check_sampling(arguments.engine_temperature, arguments.engine_top_p, arguments.engine_top_k, prefix="--engine-")
    # before a checkpoint is converted for it
    if arguments.prompts is not None and not os.path.isfile(arguments.prompts):
        raise UserError(f"--prompts={arguments.prompts} is not a file; give a text file, JSONL or parquet.")
    for folder in arguments.older:
        if not os.path.isfile(folder / "config.json"):
            raise UserError(f"--older={folder} holds no config.json; give a folder in Hugging Face layout.")
