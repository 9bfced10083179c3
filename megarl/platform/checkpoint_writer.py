"""Keeps a synchronous save inside the process: no manager, no forked writer."""

import contextlib
import queue
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def fast_sync_save() -> Iterator[None]:
    """Makes a synchronous `dist_checkpointing.save` work in its own process.

    Megatron-core's writer is made for asynchronous saves. It reports through a queue of a `multiprocessing` manager, a
    spawned process that imports torch: 3 s for the first save of a process. And up to 0.16 it forks a process for each
    file: one more that a kill can leave behind, with whatever its parent had open and locked. A synchronous save needs
    neither. A manager that was started before is kept for later.

    Wrap synchronous saves only. Megatron-core 0.19 needs `save(..., async_strategy="mcore")` to take this writer.
    """
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    writer = filesystem_async.FileSystemWriterAsync
    forking = writer.__dict__.get("write_preloaded_data_multiproc")
    before = filesystem_async._results_queue
    filesystem_async._results_queue = queue.Queue()
    if forking is not None:
        writer.write_preloaded_data_multiproc = staticmethod(_write_here)
    try:
        yield
    finally:
        filesystem_async._results_queue = before
        if forking is not None:
            writer.write_preloaded_data_multiproc = forking


def _write_here(
    transform_list: list[Any], use_msc: bool, rank: int, write_buckets: list[Any], results: "queue.Queue[Any]"
) -> None:
    """Writes each bucket in turn and reports as the forking writer does: index to results, or the first exception."""
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    written: dict[int, Any] = {}
    for index, bucket in enumerate(write_buckets):
        reported: queue.Queue[Any] = queue.Queue()
        # the writer counts itself off this queue when it is done
        pending: queue.Queue[int] = queue.Queue()
        pending.put(index)
        more = {"use_msc": True} if use_msc else {}
        FileSystemWriterAsync.write_preloaded_data(transform_list, index, bucket, reported, pending, True, **more)
        _, outcome = reported.get_nowait()
        if isinstance(outcome, Exception):
            results.put(outcome)
            return
        written[index] = outcome
    results.put(written)
