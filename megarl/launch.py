"""Starts a training run: in this process, in a world that torchrun or srun made, or in worker processes of its own."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from megarl.config.check_init import check_vocabulary
from megarl.config.errors import RecipeError
from megarl.config.load import Loaded
from megarl.config.schema import Recipe
from megarl.loop.stop import StopFlag, Stopped

STOPPING_S = 9.5
"""Seconds that workers have after a stop signal before they are killed."""
_RENDEZVOUS_VARIABLE = "MEGARL_RENDEZVOUS"
_PR_SET_PDEATHSIG = 1


def train(loaded: Loaded, arguments: Sequence[str]) -> int:
    """Runs `megarl train`.

    Args:
        loaded: the checked recipe.
        arguments: the recipe's path and the overrides, which workers are given again.

    Returns:
        Exit code: 0 done, 128 + signal where one stopped the run, a worker's own where one failed.

    Raises:
        UserError: the recipe, its data or its folder cannot be used; nothing was started then.
    """
    stop = StopFlag()
    stop.install()
    recipe = loaded.recipe
    joined = _joined_world_size()
    if joined is not None and joined != recipe.parallel.world_size:
        raise RecipeError(
            f"parallel.world_size={recipe.parallel.world_size}, but this process was started in a world of {joined}; "
            f"set parallel.world_size={joined}, or start it without torchrun or srun."
        )
    if _RENDEZVOUS_VARIABLE not in os.environ:
        _preflight(recipe)
    if joined is None and recipe.parallel.world_size > 1:
        return _run_workers(arguments, recipe.parallel.world_size, stop)
    if _RENDEZVOUS_VARIABLE in os.environ:
        _die_with_launcher()
    from megarl.loop.train import train as train_here

    try:
        train_here(recipe, stop)
    except Stopped as stopped:
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"megarl: {stopped}; the run was saved and the same command continues it", file=sys.stderr)
        return 128 + stopped.signal_number
    return 0


def _joined_world_size() -> int | None:
    """Size of the world that a launcher started this process in; None where there is none."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    if "SLURM_PROCID" in os.environ and "MASTER_ADDR" in os.environ:
        return int(os.environ["SLURM_NTASKS"])
    return None


def _preflight(recipe: Recipe) -> None:
    """Finds the user's mistakes that the recipe alone does not show, before any process or file is made."""
    from megarl.data.registry import build_source
    from megarl.data.tokenizer import build_tokenizer, check_prompt_lengths
    from megarl.loop.folder import check_folder
    from megarl.objectives.registry import build_objective
    from megarl.rewards.registry import build_reward

    check_folder(recipe)
    build_objective(recipe.rl.objective)
    build_reward(recipe)
    tokenizer = build_tokenizer(recipe.tokenizer)
    check_vocabulary(recipe, len(tokenizer))
    check_prompt_lengths(build_source(recipe), tokenizer, recipe)


def _run_workers(arguments: Sequence[str], world_size: int, stop: StopFlag) -> int:
    """One process a rank on this machine, watched until all have ended; the first failure ends the others."""
    with tempfile.TemporaryDirectory(prefix="megarl-") as rendezvous:
        workers = [_start_worker(arguments, rank, world_size, rendezvous) for rank in range(world_size)]
        try:
            return _watch(workers, stop)
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                worker.wait()


def _start_worker(arguments: Sequence[str], rank: int, world_size: int, rendezvous: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        _RENDEZVOUS_VARIABLE: rendezvous,
        # all ranks are on this machine, and a hostname need not resolve to it
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    # a session of its own: Ctrl-C in the terminal reaches the launcher alone, which tells each worker once
    return subprocess.Popen(
        [sys.executable, "-m", "megarl", "train", *arguments], env=environment, start_new_session=True
    )


def _watch(workers: Sequence[subprocess.Popen[bytes]], stop: StopFlag) -> int:
    """Waits for the workers. A stop signal is passed on once; a failed worker's peers are told to stop."""
    deadline: float | None = None
    failed = 0
    while any(worker.poll() is None for worker in workers):
        codes = [worker.poll() for worker in workers]
        if failed == 0 and stop.signal_number == 0:
            failed = next((code for code in codes if code), 0)
        if deadline is None and (stop.signal_number or failed):
            deadline = time.monotonic() + STOPPING_S
            if failed:
                rank = codes.index(failed)
                print(f"megarl: rank {rank} ended with {_described(failed)}; stopping the others", file=sys.stderr)
            for worker in workers:
                if worker.poll() is None:
                    worker.send_signal(signal.SIGTERM)
        if deadline is not None and time.monotonic() > deadline:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
        time.sleep(0.05)
    if stop.signal_number:
        return 128 + stop.signal_number
    codes = [worker.returncode for worker in workers]
    failed = failed or next((code for code in codes if code), 0)
    return failed if failed >= 0 else 128 - failed


def _described(code: int) -> str:
    return f"exit code {code}" if code > 0 else signal.Signals(-code).name


def _die_with_launcher() -> None:
    """Asks the kernel for a SIGTERM when the launcher dies, so that kill -9 on it leaves no orphan."""
    if Path("/proc").exists():
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == 1:
            raise SystemExit("megarl: the launcher is gone")
