"""The workers' sides of the transports, by name. An engine's process imports this, and no recipe."""

from collections.abc import Callable, Mapping
from typing import Any

from megarl.sync.broadcast import BroadcastReader
from megarl.sync.cuda_ipc import CudaIpcReader
from megarl.sync.delta import DeltaReader
from megarl.sync.disk import DiskReader
from megarl.sync.shared_memory import SharedMemoryReader
from megarl.sync.transport import Reader

READERS: dict[str, Callable[..., Reader]] = {
    "shared_memory": SharedMemoryReader,
    "disk": DiskReader,
    "broadcast": BroadcastReader,
    "cuda_ipc": CudaIpcReader,
}


def open_reader(description: Mapping[str, Any]) -> Reader:
    """The reader that `Sender.describe` asks for."""
    reader = READERS[description["transport"]](**description.get("options", {}))
    return DeltaReader(reader) if description.get("delta") else reader
