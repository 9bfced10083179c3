"""Streams, events and NVTX ranges of a device whose work is done when the call returns."""

import contextlib
import time
from types import TracebackType
from typing import Any, Self

import torch


class Event:
    """torch.cuda.Event: complete as soon as it is recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._recorded_s: float | None = None

    def record(self, stream: Any = None) -> None:
        """Takes the time."""
        self._recorded_s = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Returns at once."""

    def synchronize(self) -> None:
        """Returns at once."""

    def query(self) -> bool:
        """True: the work before the event is done."""
        return True

    def elapsed_time(self, end_event: "Event") -> float:
        """Milliseconds from this event to `end_event`.

        Raises:
            RuntimeError: one of them was not recorded.
        """
        if self._recorded_s is None or end_event._recorded_s is None:
            raise RuntimeError("both events must be recorded before the time between them is taken")
        return (end_event._recorded_s - self._recorded_s) * 1e3


class Stream:
    """torch.cuda.Stream: every instance is the one stream that there is, so all compare equal."""

    device = torch.device("cpu")
    cuda_stream = 0

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        """Returns at once."""

    def wait_event(self, event: Any) -> None:
        """Returns at once."""

    def record_event(self, event: Event | None = None) -> Event:
        """Records `event`, or a new one, and returns it."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Returns at once."""

    def query(self) -> bool:
        """True: all work is done."""
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return hash(Stream)


_THE_STREAM = Stream()


def _current_stream(device: Any = None) -> Stream:
    return _THE_STREAM


def _default_stream(device: Any = None) -> Stream:
    return _THE_STREAM


def _stream(stream: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


# One function for each name: dynamo indexes torch's functions by identity and asserts that none is shared.
def _range_push(msg: str) -> int:
    return 0


def _range_pop() -> int:
    return 0


def _mark(msg: str) -> None:
    pass


def _range(msg: str, *args: Any, **kwargs: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def patch_streams() -> None:
    """Replaces torch.cuda's streams, events and NVTX marks, all of which raise without CUDA."""
    cuda: Any = torch.cuda
    cuda.Stream = Stream
    cuda.Event = Event
    cuda.stream = _stream
    cuda.current_stream = _current_stream
    cuda.default_stream = _default_stream
    cuda.nvtx.range_push = _range_push
    cuda.nvtx.range_pop = _range_pop
    cuda.nvtx.mark = _mark
    cuda.nvtx.range = _range
