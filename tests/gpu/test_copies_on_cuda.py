"""Copies for a save in the background, which the device makes beside its other work."""

import threading

import torch

from megarl.platform.pending_write import HostMemory
from megarl.platform.platform import current


def test_a_copy_has_what_the_device_was_asked_for_before_its_mark() -> None:
    """Made in a thread while the device is still busy with what comes before, and whole when the thread ends."""
    platform, memory = current(), HostMemory()
    source = torch.zeros(2**26, device=platform.device)
    busy = torch.randn(8192, 8192, device=platform.device)
    for number in (1.0, 2.0):
        for _ in range(20):
            busy = torch.tanh(busy @ busy)
        source.fill_(number)
        mark = platform.mark()
        copies: list[torch.Tensor] = []

        def copy(mark: torch.cuda.Event | None = mark, copies: list[torch.Tensor] = copies) -> None:
            with platform.beside(mark):
                copies.append(memory.copy(source))

        thread = threading.Thread(target=copy)
        thread.start()
        thread.join()
        source.fill_(-1.0)
        assert copies[0].is_pinned() and bool((copies[0] == number).all())
        # the second goes to the same memory
        memory.take_back(copies[0])
