"""Streams and events of a device that is always done."""

import time

import pytest
import torch

from megarl.platform import install

install()


def test_work_on_any_stream_is_done() -> None:
    stream = torch.cuda.Stream()
    event = stream.record_event()
    stream.wait_event(event)
    stream.wait_stream(torch.cuda.current_stream())
    stream.synchronize()
    event.synchronize()
    assert stream.query() and event.query()
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream == torch.cuda.default_stream()
    assert hash(stream) == hash(torch.cuda.current_stream())
    assert stream != "stream"


def test_events_measure_time_in_milliseconds() -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    time.sleep(0.02)
    end.record()
    assert 20 <= start.elapsed_time(end) < 2000


def test_time_to_an_unrecorded_event_is_refused() -> None:
    start = torch.cuda.Event(enable_timing=True)
    start.record()
    with pytest.raises(RuntimeError, match="recorded"):
        start.elapsed_time(torch.cuda.Event(enable_timing=True))


def test_nvtx_does_nothing() -> None:
    torch.cuda.nvtx.mark("here")
    torch.cuda.nvtx.range_push("step")
    with torch.cuda.nvtx.range("part"):
        torch.cuda.nvtx.range_pop()
