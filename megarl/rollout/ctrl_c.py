"""What a pool of threads needs at Ctrl-C, which would else wait for all that its threads wait for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def at_ctrl_c(end: Callable[[], object]) -> Iterator[None]:
    """Calls `end` where Ctrl-C interrupts the block. Args: end: lets go of what the threads wait for."""
    try:
        yield
    except KeyboardInterrupt:
        end()
        raise
