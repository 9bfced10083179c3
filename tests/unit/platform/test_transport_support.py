"""Ways to the engines that a machine does not have are refused before anything starts."""

import pytest

from megarl.config.engine import SyncConfig
from megarl.config.errors import RecipeError
from megarl.platform.platform import current
from megarl.platform.transport_support import check_transport


@pytest.mark.skipif(current().name == "cuda", reason="this machine has a GPU, whose memory can be shared")
def test_gpu_memory_is_refused_on_a_cpu() -> None:
    with pytest.raises(
        RecipeError, match=r"^sync\.transport=cuda_ipc is memory of a GPU.*set sync\.transport=shared_memory\.$"
    ):
        check_transport(SyncConfig(transport="cuda_ipc"))


@pytest.mark.parametrize("transport", ["shared_memory", "disk", "broadcast"])
def test_the_others_run_everywhere(transport: str) -> None:
    check_transport(SyncConfig(transport=transport))
