"""One rank of `run_world`: joins the others, calls the function, leaves its result or its traceback."""

import ctypes
import faulthandler
import importlib
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(target: str, folder: Path, shared: Path, timeout_s: float, backend: str) -> int:
    """Runs the rank and returns its exit status."""
    # A test run that is killed takes its ranks with it, though they lead sessions of their own.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # SIGUSR1 comes at the time-out: it shows where the rank hangs.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        import torch
        import torch.distributed as dist

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
        return 0
    except BaseException:
        partial = folder / f"rank{rank}.error.partial"
        partial.write_text(f"{time.monotonic_ns()}\n{traceback.format_exc()}")
        os.replace(partial, folder / f"rank{rank}.error")
        return 1


if __name__ == "__main__":
    status = main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own end joins threads and process groups, which can wait for a peer that is gone.
    os._exit(status)
