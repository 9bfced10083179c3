"""Whether this machine has the way to the engines that a recipe asks for."""

from megarl.config.engine import SyncConfig
from megarl.config.refusal import refusal
from megarl.platform.platform import current


def check_transport(config: SyncConfig) -> None:
    """Refuses what needs a GPU where there is none.

    Raises:
        RecipeError: cuda_ipc on a CPU.
    """
    if config.transport == "cuda_ipc" and current().name != "cuda":
        reason = "is memory of a GPU, and this process sees none"
        raise refusal("sync.transport", "cuda_ipc", reason, "set sync.transport=shared_memory")
