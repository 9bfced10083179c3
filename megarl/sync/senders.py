"""The trainer's sides of the transports, by the recipe."""

from pathlib import Path
from urllib.parse import urlsplit

from megarl.config.check_engine import is_loopback
from megarl.config.schema import Recipe
from megarl.rollout.engine import ServedEngine
from megarl.sync.broadcast import BroadcastSender
from megarl.sync.cuda_ipc import CudaIpcSender
from megarl.sync.delta import DeltaSender
from megarl.sync.disk import DiskSender
from megarl.sync.shared_memory import SharedMemorySender
from megarl.sync.transport import Sender


def build_sender(recipe: Recipe, engine: ServedEngine) -> Sender:
    """The trainer's side of `sync.transport`.

    Args:
        recipe: says which.
        engine: whose workers it is for; asked about them where they must all be waited for.
    """
    sender = _transport(recipe, engine)
    return DeltaSender(sender) if recipe.sync.delta else sender


def _transport(recipe: Recipe, engine: ServedEngine) -> Sender:
    match recipe.sync.transport:
        case "disk":
            return DiskSender(Path(recipe.sync.folder or f"{recipe.output_dir}/sync"))
        case "broadcast":
            towards, timeout_s = _farthest(recipe), recipe.sync.timeout_s
            return BroadcastSender(engine.workers, lambda: engine.lost, towards=towards, timeout_s=timeout_s)
        case "cuda_ipc":
            return CudaIpcSender()
        case _:
            return SharedMemorySender()


def _farthest(recipe: Recipe) -> str:
    """A machine with a server: another one than this where there is one."""
    hosts = [urlsplit(url).hostname or "" for url in recipe.engine.urls]
    return next((host for host in hosts if not is_loopback(host)), "127.0.0.1")
