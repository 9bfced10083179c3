"""The workers' sides of the transports, by name. An engine's process imports this, and no recipe."""

from collections.abc import Callable

from megarl.sync.disk import DiskReader
from megarl.sync.shared_memory import SharedMemoryReader
from megarl.sync.transport import Reader

READERS: dict[str, Callable[[], Reader]] = {"shared_memory": SharedMemoryReader, "disk": DiskReader}
