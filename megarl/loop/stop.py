"""Stopping on SIGTERM and Ctrl-C: at a step's end, on all ranks together, within seconds.

Imports nothing heavy: the handlers must stand before torch is imported, which takes seconds.
"""

import os
import signal
import threading
from types import FrameType

GRACE_S = 9.0
"""Seconds from the signal until the process ends in any case; the checkpoints on disk stay valid."""


class Stopped(Exception):  # noqa: N818 - no error: the run ended as it was asked to
    """A signal asked the run to end; its state was saved.

    Attributes:
        signal_number: the signal, for the exit code 128 + signal_number.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


class StopFlag:
    """Remembers the first stop signal.

    Attributes:
        signal_number: the signal that was received, 0 before one was.
    """

    def __init__(self) -> None:
        self.signal_number = 0

    def install(self) -> None:
        """Takes SIGTERM and SIGINT over."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number == 0:
            self.signal_number = number
            watchdog = threading.Timer(GRACE_S, os._exit, args=(128 + number,))
            watchdog.daemon = True
            watchdog.start()
