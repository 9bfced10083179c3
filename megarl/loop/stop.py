"""Stopping on SIGTERM, SIGUSR1 and Ctrl-C: at a step's end, on all ranks together, within seconds.

Imports nothing heavy: the handlers must stand before torch is imported, which takes seconds.
"""

import os
import signal
import threading
from types import FrameType

EARLY_GRACE_S = 5.0
"""Seconds that a process has to end after a signal that came before there was anything to save."""


STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""SIGUSR1 is what SLURM is told to send before a job's time is over."""


class Stopped(Exception):  # noqa: N818 - no error: the run ended as it was asked to
    """A signal asked the run to end; its state was saved.

    Attributes:
        signal_number: the signal, for the exit code 128 + signal_number.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


class StoppedEarly(SystemExit):
    """A signal came before there was anything to save."""


class StopFlag:
    """What a stop signal does: end the process at once, and once `defer` was called, only ask it to end.

    Attributes:
        signal_number: the signal that was deferred, 0 before one was.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        self._deferred = False
        self._grace_s: float | None = EARLY_GRACE_S

    def install(self) -> None:
        """Takes the signals over.

        A thread watches for them too: Python runs a handler in the main thread alone, between two bytecodes, and that
        one may be waiting in C code for a rank that is gone.
        """
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(read,), name="stop-signals", daemon=True).start()
        for number in STOPS:
            signal.signal(number, self._receive)

    def defer(self, grace_s: float | None) -> None:
        """From here on there is something to save or to look after: a signal is remembered.

        Args:
            grace_s: seconds from the signal until the process ends in any case; None for no such limit.
        """
        self._deferred, self._grace_s = True, grace_s

    def ignore(self) -> None:
        """The process ends now, with the exit code that it has: further signals change nothing."""
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._deferred:
            os.write(2, f"megarl: stopped by {signal.Signals(number).name}; there was nothing to save yet\n".encode())
            raise StoppedEarly(128 + number)

    def _watch(self, pipe: int) -> None:
        """Waits for the first stop signal, and ends the process where it does not end by itself in time."""
        number = 0
        while number not in STOPS:
            number = os.read(pipe, 1)[0]
        if self._deferred:
            self.signal_number = number
        if self._grace_s is not None:
            threading.Event().wait(self._grace_s)
            message = (
                f"megarl: ended {self._grace_s:g} s after the signal, unsaved; the checkpoints before it are whole\n"
            )
            os.write(2, message.encode())
            os._exit(128 + number)
