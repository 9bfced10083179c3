"""A phase of a step, with the seconds that it takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from megarl.loop.watchdog import phase
from megarl.platform.platform import current


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Adds the block's wall time to seconds[name]; what the device was asked for in it is done by its end."""
    current().synchronize()
    begin = time.perf_counter()
    with phase(name):
        yield
        current().synchronize()
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begin
