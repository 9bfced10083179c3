"""Starts a training run: in this process, in a world that torchrun or srun made, or in worker processes of its own."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from megarl.config.check_init import check_vocabulary
from megarl.config.errors import USER_ERROR, RecipeError, UserError
from megarl.config.load import Loaded
from megarl.config.schema import Recipe
from megarl.loop.stop import StopFlag, Stopped, StoppedEarly
from megarl.platform.child import die_with_parent, python_path
from megarl.platform.failures import note_failure, noted_failures
from megarl.platform.joined import LAUNCHER_PID, RENDEZVOUS, joined_world

_KILL_AFTER_GRACE_S = 0.5
"""A worker ends by itself after its grace; one that cannot, stopped or stuck in C code, is killed this much later."""


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
    if (code := _elsewhere(recipe, ["train", *arguments], stop, writes=True)) is not None:
        return code
    from megarl.loop.train import train as train_here

    try:
        train_here(recipe, stop)
    except Stopped as stopped:
        stop.ignore()
        joined = joined_world()
        if joined is None or joined.rank == 0:
            print(f"megarl: {stopped}; the run was saved and the same command continues it", file=sys.stderr)
        return 128 + stopped.signal_number
    except StoppedEarly:
        raise
    except Exception as error:
        earlier = note_failure(error)
        if earlier is None or isinstance(error, UserError):
            raise
        # its traceback would only tell that the connection to the rank that failed is gone
        print(f"megarl: rank {os.environ['RANK']} ended after rank {earlier.rank} failed", file=sys.stderr)
        return 1
    except SystemExit as error:
        # a reward or an objective of the user's; taken for an end of the run it would look like success
        raise RuntimeError(f"something that the run called ended the process with SystemExit({error.code})") from error
    return 0


def sync_check(loaded: Loaded, arguments: Sequence[str]) -> int:
    """Runs `megarl sync-check`.

    Args:
        loaded: the checked recipe.
        arguments: the recipe's path and the overrides, which workers are given again.

    Returns:
        Exit code: 0 where the engine holds the trainer's weights, 1 where it does not.

    Raises:
        UserError: the recipe or its data cannot be used; nothing was started then.
    """
    stop = StopFlag()
    stop.install()
    if (code := _elsewhere(loaded.recipe, ["sync-check", *arguments], stop, writes=False)) is not None:
        return code
    from megarl.loop.sync_check import sync_check as check_here

    return check_here(loaded.recipe)


def _elsewhere(recipe: Recipe, command: Sequence[str], stop: StopFlag, *, writes: bool) -> int | None:
    """The exit code of the workers that were started for a command; None where it is to be run in this process.

    Args:
        recipe: checked by itself; what it finds on this machine is checked here.
        command: what a worker runs.
        stop: set by signals.
        writes: whether the command writes to the run's folder, which must then be this recipe's.
    """
    joined = joined_world()
    if joined is not None and joined.world_size != recipe.parallel.world_size:
        raise RecipeError(
            f"parallel.world_size={recipe.parallel.world_size}, but this process was started in a world of "
            f"{joined.world_size}; set parallel.world_size={joined.world_size}, or start it without torchrun or srun."
        )
    if LAUNCHER_PID in os.environ:
        _die_with_launcher()
        return None
    preflight(recipe, writes=writes)
    if joined is None and recipe.parallel.world_size > 1:
        return _run_workers(command, recipe, stop)
    return None


def preflight(recipe: Recipe, *, writes: bool) -> None:
    """Finds the user's mistakes that the recipe alone does not show, before any process or file is made.

    Args:
        recipe: checked by itself.
        writes: whether the command writes to the run's folder and mirrors its metrics.

    Raises:
        UserError: this machine, a file or the user's own code is not what the recipe needs.
    """
    from megarl.data.registry import build_source
    from megarl.data.tokenizer import build_tokenizer, check_prompt_lengths
    from megarl.loop.folder import check_folder
    from megarl.objectives.registry import build_objective
    from megarl.observe.mirrors import check_wandb
    from megarl.platform.kernel_support import check_kernels
    from megarl.platform.platform import current
    from megarl.platform.precision_support import check_precision
    from megarl.platform.transport_support import check_transport
    from megarl.rewards.registry import build_reward
    from megarl.rollout.build import check_engine_here

    devices = current().devices_here
    if devices is not None and (local := _ranks_here(recipe)) > devices:
        raise RecipeError(
            f"parallel.world_size={recipe.parallel.world_size} puts {local} processes on this machine, which has "
            f"{devices} GPUs; use fewer, or train on the CPU with CUDA_VISIBLE_DEVICES= in the environment."
        )
    if devices is not None:
        check_kernels()
    check_precision(recipe.precision)
    check_transport(recipe.sync)
    check_engine_here(recipe)
    if writes:
        check_folder(recipe)
        check_wandb(recipe.observe.wandb_project)
    build_objective(recipe.rl.objective)
    build_reward(recipe)
    tokenizer = build_tokenizer(recipe.tokenizer)
    check_vocabulary(recipe, len(tokenizer))
    if recipe.model.init_from is not None:
        from megarl.megatron.hf_folder import check_saved_weights

        check_saved_weights(Path(recipe.model.init_from), recipe.model, len(tokenizer))
    check_prompt_lengths(build_source(recipe), tokenizer, recipe)


def _ranks_here(recipe: Recipe) -> int:
    """Processes of the trainer on this machine, as far as the launcher tells."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("SLURM_NTASKS_PER_NODE", recipe.parallel.world_size)))


def _run_workers(arguments: Sequence[str], recipe: Recipe, stop: StopFlag) -> int:
    """One process a rank on this machine, watched until all have ended; the first failure ends the others."""
    world_size = recipe.parallel.world_size
    stop.defer(grace_s=None)
    with tempfile.TemporaryDirectory(prefix="megarl-") as rendezvous:
        workers = [_start_worker(arguments, rank, world_size, rendezvous) for rank in range(world_size)]
        try:
            return _watch(workers, stop, recipe.checkpoint.stop_grace_s + _KILL_AFTER_GRACE_S, Path(rendezvous))
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                worker.wait()


def _start_worker(arguments: Sequence[str], rank: int, world_size: int, rendezvous: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(os.environ),
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        RENDEZVOUS: rendezvous,
        LAUNCHER_PID: str(os.getpid()),
        # all ranks are on this machine, and a hostname need not resolve to it
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    # a session of its own: Ctrl-C in the terminal reaches the launcher alone, which tells each worker once
    return subprocess.Popen(
        # -P: the working folder may hold another thing called megarl, such as the clone itself
        [sys.executable, "-P", "-m", "megarl", *arguments],
        env=environment,
        start_new_session=True,
    )


def _watch(workers: Sequence[subprocess.Popen[bytes]], stop: StopFlag, limit_s: float, rendezvous: Path) -> int:
    """Waits for the workers. A stop signal is passed on once; a failed worker's peers are told to stop."""
    deadline: float | None = None
    failed = 0
    told = ""
    while any(worker.poll() is None for worker in workers):
        codes = [worker.poll() for worker in workers]
        if failed == 0 and stop.signal_number == 0:
            failed = _first_code(codes, rendezvous)
        if deadline is None and (stop.signal_number or failed):
            deadline = time.monotonic() + limit_s
            if failed:
                told = f"rank {codes.index(failed)} ended with {_described(failed)}"
                print(f"megarl: {told}; stopping the others", file=sys.stderr)
            for worker in workers:
                if worker.poll() is None:
                    worker.send_signal(stop.signal_number or signal.SIGTERM)
        if deadline is not None and time.monotonic() > deadline:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
        time.sleep(0.05)
    if stop.signal_number:
        return 128 + stop.signal_number
    codes = [worker.returncode for worker in workers]
    failed = failed or _first_code(codes, rendezvous)
    failures = noted_failures(rendezvous)
    if failed > 0 and failures:
        failed = max(codes[failures[0].rank] or 0, 0) or failed
    # last, below what every rank printed; a mistake of the user's is told by rank 0 alone
    if failed > 0 and failures and not (failed == USER_ERROR and any(failure.rank == 0 for failure in failures)):
        print(f"megarl: rank {failures[0].rank} failed first: {failures[0].error}", file=sys.stderr)
    elif failed < 0 and told:
        print(f"megarl: {told} first", file=sys.stderr)
    return failed if failed >= 0 else 128 - failed


def _first_code(codes: Sequence[int | None], rendezvous: Path) -> int:
    """Of the ranks that have failed, the exit code of the one that did first; 0 where none has."""
    # a killed rank notes nothing, and what others raised is that they lost it
    killed = next((code for code in codes if code is not None and code < 0), 0)
    failures = noted_failures(rendezvous)
    if killed or not failures:
        return killed or next((code for code in codes if code), 0)
    # it may take a while to end, where it waits for the others
    return codes[failures[0].rank] or next((code for code in codes if code), 0)


def _described(code: int) -> str:
    return f"exit code {code}" if code > 0 else signal.Signals(-code).name


def _die_with_launcher() -> None:
    """Ties this process's life to the launcher's, which may be gone already."""
    die_with_parent()
    if os.getppid() != int(os.environ[LAUNCHER_PID]):
        raise SystemExit("megarl: the launcher is gone")
