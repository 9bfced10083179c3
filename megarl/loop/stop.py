"""Stopping on SIGTERM and Ctrl-C: at a step's end, on all ranks together, within seconds.

Imports nothing heavy: the handlers must stand before torch is imported, which takes seconds.
"""

import os
import signal
import threading
from types import FrameType


class Stopped(Exception):  # noqa: N818 - no error: the run ended as it was asked to
    """A signal asked the run to end; its state was saved.

    Attributes:
        signal_number: the signal, for the exit code 128 + signal_number.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


class StopFlag:
    """What SIGTERM and Ctrl-C do: end the process at once, and once `defer` was called, only ask it to end.

    Attributes:
        signal_number: the signal that was deferred, 0 before one was.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        self._deferred = False
        self._grace_s: float | None = None

    def install(self) -> None:
        """Takes both signals over."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def defer(self, grace_s: float | None) -> None:
        """From here on there is something to save or to look after: a signal is remembered.

        Args:
            grace_s: seconds from the signal until the process ends in any case; None for no such limit.
        """
        self._deferred, self._grace_s = True, grace_s

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._deferred:
            raise SystemExit(128 + number)
        if self.signal_number:
            return
        self.signal_number = number
        if self._grace_s is not None:
            watchdog = threading.Timer(self._grace_s, self._give_up)
            watchdog.daemon = True
            watchdog.start()

    def _give_up(self) -> None:
        message = (
            f"megarl: ended {self._grace_s:g} s after the signal without a save; the checkpoints before it are whole\n"
        )
        os.write(2, message.encode())
        os._exit(128 + self.signal_number)
