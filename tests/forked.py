"""Processes that start in milliseconds: forked from one that has imported megarl and what it needs, and run nothing.

Each starts from the state after the imports, whatever ran before it. Three things a process of its own would show are
hidden here: what goes wrong when modules are imported in another order, what a launcher does, and orders that depend on
Python's hash seed, which all of them share. Tests of the command line, of launchers and of two runs that must be the
same in separate interpreters therefore start `python -m megarl` (`tests.runs.command`).
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# what a run, its summary and the workers of tests/parallel load; a name that is not installed is passed over
_IMPORTED = [
    "megarl.loop.train",
    "megarl.observe.picture",
    "torch.utils.tensorboard",
    "transformers.models.qwen2.modeling_qwen2",
]
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(_IMPORTED)


def fork(
    function: Callable[..., Any], *args: Any, environment: Mapping[str, str], stdout: Path, stderr: Path | None = None
) -> ForkServerProcess:
    """Starts `function(*args)`, which returns an exit status, in a session of its own.

    Args:
        function: of a module that the process can import by name.
        args: what pickle takes.
        environment: all of the process's variables; OMP_NUM_THREADS was read at the import and is 1.
        stdout: file that is appended to.
        stderr: likewise; the same file where None.
    """
    paths = (str(stdout), str(stderr or stdout))
    process = _SERVER.Process(target=_run, args=(function, args, dict(environment), paths))
    process.start()
    return process


def world_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """What torchrun sets, where the test serves the store on that port in the place of torchrun's agent."""
    return {
        "GLOO_SOCKET_IFNAME": "lo",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def kill(process: ForkServerProcess) -> None:
    """Ends it and all that it left in its process group, and waits until it is gone."""
    assert process.pid is not None
    # An ended one's number goes to a new process only once nothing is left of its group.
    if process.is_alive() or not psutil.pid_exists(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _run(
    function: Callable[..., Any], args: tuple[Any, ...], environment: dict[str, str], paths: tuple[str, str]
) -> None:
    os.setsid()
    # A test run that is killed takes the server with it, and the server these.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor, path in enumerate(paths, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[attr-defined]  # a file's would keep its last lines
    os.environ.clear()
    os.environ.update(environment)
    import numpy

    # an interpreter of its own would have drawn another; Python's own generator is seeded anew by every fork
    numpy.random.seed()
    raise SystemExit(function(*args))
