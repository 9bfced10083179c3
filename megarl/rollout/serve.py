"""One server of the recipe's engine for a trainer on another machine: `megarl serve`."""

import os
import socket
import time
from pathlib import Path

from megarl.config.errors import UserError
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe
from megarl.data.tokenizer import build_tokenizer
from megarl.megatron.models import FAMILIES
from megarl.observe.announced import ENDED, URL
from megarl.observe.files import write_atomic
from megarl.rollout.build import check_engine_here
from megarl.rollout.server import Launch
from megarl.rollout.server_process import ServerProcess, reserved_port
from megarl.rollout.sglang import command as sglang
from megarl.rollout.vllm import command as vllm

_LAUNCHES: dict[str, Launch] = {"vllm": vllm, "sglang": sglang}
_EVERYWHERE = "0.0.0.0"
_POLL_S = 0.2


def serve(recipe: Recipe, announce: Path) -> int:
    """Starts a server that listens on all interfaces and asks for the token, and waits until it ends.

    Once it listens, its URL is printed, and is the one line of a file NAME.url in the folder `announce`; when it has
    ended, its last words are in NAME.ended; its log is in NAME/ there, as the run's folder is the trainer's to make.

    Args:
        recipe: says how.
        announce: folder.

    Returns:
        The server's exit code, or 1 where that is 0: nobody asked it to end.

    Raises:
        UserError: the recipe has no servers of its own or keeps them on this machine, or there is no token.
    """
    if recipe.rollout.engine == "embedded":
        raise refusal("rollout.engine", "embedded", "has no server", "set rollout.engine=vllm or sglang")
    if not recipe.engine.allow_remote:
        reason = "keeps servers on this machine, and this one listens on all of its interfaces"
        raise refusal("engine.allow_remote", False, reason, "set engine.allow_remote=true")
    token = os.environ.get(recipe.engine.token_variable)
    if not token:
        raise UserError(
            f"The environment variable {recipe.engine.token_variable} is missing, without which anybody on the network "
            "could use the server; set it to a secret that the trainer has too."
        )
    check_engine_here(recipe)
    announce.mkdir(parents=True, exist_ok=True)
    # two servers of one job may be on one node
    name = f"{socket.gethostname()}-{os.environ.get('SLURM_PROCID', '0')}"
    folder = announce / name
    vocab_size = len(build_tokenizer(recipe.tokenizer))
    FAMILIES[recipe.model.family].hf_config(recipe.model, vocab_size).save_pretrained(folder)
    process, port = _listening(recipe, folder, token)
    try:
        url = f"http://{socket.gethostname()}:{port}"
        write_atomic(announce / f"{name}{URL}", url.encode())
        print(f"megarl: serving at {url}", flush=True)
        while process.exit_code is None:
            time.sleep(_POLL_S)
        failure = str(process.failure())
        print(f"megarl: {failure}", flush=True)
        write_atomic(announce / f"{name}{ENDED}", failure.encode())
        return process.exit_code or 1
    finally:
        process.end()


def _listening(recipe: Recipe, folder: Path, token: str) -> tuple[ServerProcess, int]:
    """A server that accepts connections or has ended, and its port."""
    launch = _LAUNCHES[recipe.rollout.engine]
    # what accepts connections there is the server, and nothing that took the port while it started
    with reserved_port() as kept:
        port: int = kept.getsockname()[1]
        process = ServerProcess(
            launch.server_command(recipe, folder, port, _EVERYWHERE),
            launch.server_environment(os.environ, token),
            folder / "server.log",
        )
        while process.exit_code is None and not _accepts(port):
            time.sleep(_POLL_S)
    return process, port


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
