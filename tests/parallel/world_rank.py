"""One rank of `run_world`: joins the others, calls the function, leaves its result or its traceback."""

import faulthandler
import importlib
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist


def main(target: str, folder: Path, shared: Path, timeout_s: float, backend: str) -> NoReturn:
    """Runs the rank and ends its process with an exit status."""
    # SIGUSR1 comes at the time-out: it shows where the rank hangs.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        torch.set_num_threads(1)
        module, _, name = target.partition(":")
        function = getattr(importlib.import_module(module), name)
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        value = function(rank, world_size, torch.load(folder / "args", weights_only=False), shared)
        # No rank may close its connections while another still waits for it.
        if dist.is_initialized():
            dist.barrier()
        torch.save(value, folder / f"rank{rank}.partial")
        os.replace(folder / f"rank{rank}.partial", folder / f"rank{rank}.result")
        status = 0
    except BaseException:
        partial = folder / f"rank{rank}.error.partial"
        partial.write_text(f"{time.monotonic_ns()}\n{traceback.format_exc()}")
        os.replace(partial, folder / f"rank{rank}.error")
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own end joins threads and process groups, which can wait for a peer that is gone.
    os._exit(status)
