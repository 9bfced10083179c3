"""The trainer's sides of the transports, by the recipe."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from megarl.config.check_engine import is_loopback
from megarl.config.schema import Recipe
from megarl.sync.broadcast import BroadcastSender
from megarl.sync.cuda_ipc import CudaIpcSender
from megarl.sync.delta import DeltaSender
from megarl.sync.disk import DiskSender
from megarl.sync.shared_memory import SharedMemorySender
from megarl.sync.transport import Sender


def build_sender(recipe: Recipe, workers: Callable[[], int]) -> Sender:
    """The trainer's side of `sync.transport`.

    Args:
        recipe: says which.
        workers: how many there are, over all servers; asked where they must all be waited for.
    """
    sender = _transport(recipe, workers)
    return DeltaSender(sender) if recipe.sync.delta else sender


def _transport(recipe: Recipe, workers: Callable[[], int]) -> Sender:
    match recipe.sync.transport:
        case "disk":
            return DiskSender(Path(recipe.sync.folder or f"{recipe.output_dir}/sync"))
        case "broadcast":
            return BroadcastSender(workers, towards=_farthest(recipe), timeout_s=recipe.sync.timeout_s)
        case "cuda_ipc":
            return CudaIpcSender()
        case _:
            return SharedMemorySender()


def _farthest(recipe: Recipe) -> str:
    """A machine with a server: another one than this where there is one."""
    hosts = [urlsplit(url).hostname or "" for url in recipe.engine.urls]
    return next((host for host in hosts if not is_loopback(host)), "127.0.0.1")
