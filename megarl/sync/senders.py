"""The trainer's sides of the transports, by the recipe."""

from pathlib import Path

from megarl.config.schema import Recipe
from megarl.sync.disk import DiskSender
from megarl.sync.shared_memory import SharedMemorySender
from megarl.sync.transport import Sender


def build_sender(recipe: Recipe) -> Sender:
    """The trainer's side of `sync.transport`."""
    if recipe.sync.transport == "disk":
        return DiskSender(Path(recipe.sync.folder or f"{recipe.output_dir}/sync"))
    return SharedMemorySender()
