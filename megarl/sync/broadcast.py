"""Transport by a broadcast from the trainer's main rank to all workers: NCCL between GPUs, gloo between CPUs."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from megarl.platform.platform import current
from megarl.sync.bucket import Bucket, tensors_in
from megarl.sync.group import (
    ROOT,
    broadcast,
    build_group,
    join_store,
    local_address,
    seats_taken,
    serve_store,
    take_seat,
)

_POLL_S = 0.0005


class BroadcastSender:
    """Implements `megarl.sync.transport.Sender`.

    A bucket is sent from a thread, and only once all workers have asked for it: one that is dead or refuses never has,
    so there is nothing to hang in. One that dies while it receives closes its connection, which ends gloo's transfer
    at once; NCCL's is ended by `reset`. Where one is lost the group is left, so that the others need not wait either.
    """

    def __init__(
        self,
        workers: Callable[[], int],
        lost: Callable[[], bool],
        *,
        towards: str = "127.0.0.1",
        timeout_s: float = 120.0,
        slots: int = 2,
    ) -> None:
        """Prepares nothing yet.

        Args:
            workers: how many there are.
            lost: whether one of them is.
            towards: a machine that one is on.
            timeout_s: longest wait for one, in seconds.
            slots: buckets that exist at once.
        """
        self.slots, self.bytes_written = slots, 0
        self._workers, self._lost = workers, lost
        self._address, self._timeout_s = local_address(towards), timeout_s
        self._buffers: list[Tensor] = [torch.empty(0, dtype=torch.uint8)] * slots
        self._sending: list[Future[None] | None] = [None] * slots
        self._link: _Link | None = None

    def describe(self) -> dict[str, Any]:
        """See `Sender`. The workers join while they open what this describes; the trainer joins in its thread."""
        if self._link is None:
            self._link = _Link(self._workers(), self._lost, self._address, self._timeout_s)
        return {"transport": "broadcast", "options": self._link.options}

    def write(self, slot: int, bucket: Bucket, tensors: Iterable[Tensor]) -> dict[str, Any]:
        """See `Sender`."""
        assert self._link is not None
        before = self._sending[slot]
        if before is not None:
            # the workers have all of it; what is left of the transfer is this side's end of it
            before.result()
        if self._buffers[slot].numel() < bucket.nbytes:
            self._buffers[slot] = torch.empty(bucket.nbytes, dtype=torch.uint8, device=current().device)
        buffer = self._buffers[slot][: bucket.nbytes]
        for index, tensor in enumerate(tensors):
            bucket.view(buffer, index).copy_(tensor)
        current().synchronize()
        self._sending[slot], number = self._link.send(buffer)
        self.bytes_written += bucket.nbytes
        return {"number": number, "nbytes": bucket.nbytes, "contents": bucket.as_json()}

    def reset(self) -> None:
        """See `Sender`: the group is left, and the next update makes another."""
        if self._link is not None:
            self._link.end()
        self._link, self._sending = None, [None] * self.slots

    def close(self) -> None:
        """See `Sender`."""
        self.reset()
        self._buffers = []


class _Link:
    """One group, and the thread that sends in it."""

    def __init__(self, workers: int, lost: Callable[[], bool], address: str, timeout_s: float) -> None:
        self._store, port = serve_store(address, timeout_s)
        self._workers, self._lost, self._timeout_s = workers, lost, timeout_s
        self._ended = threading.Event()
        self._sent = 0
        self._group: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="broadcast")
        self.options: dict[str, Any] = {
            "address": address,
            "port": port,
            "size": workers + 1,
            "backend": current().dist_backend,
            "timeout_s": timeout_s,
        }
        self._joined = self._thread.submit(self._join)

    def send(self, buffer: Tensor) -> tuple[Future[None], int]:
        number, self._sent = self._sent, self._sent + 1
        return self._thread.submit(self._send, number, buffer), number

    def end(self) -> None:
        self._ended.set()
        if self._joined.done() and self._group is not None and self.options["backend"] == "nccl":
            self._group.abort()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _join(self) -> None:
        current().use_device()
        self._wait(lambda: seats_taken(self._store))
        address, size, backend = self.options["address"], self._workers + 1, self.options["backend"]
        self._group = build_group(backend, self._store, ROOT, size, address, self._timeout_s)

    def _send(self, number: int, buffer: Tensor) -> None:
        self._joined.result()
        try:
            self._wait(lambda: int(self._store.add(_ready(number), 0)))
            broadcast(self._group, buffer)
        except BaseException:
            # its connections close, and who waits for the trainer stops
            self._group = None
            raise

    def _wait(self, come: Callable[[], int]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while come() < self._workers:
            if self._ended.is_set() or self._lost():
                raise RuntimeError("the update is void")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all {self._workers} workers came within sync.timeout_s={self._timeout_s:g}")
            time.sleep(_POLL_S)


class BroadcastReader:
    """Implements `megarl.sync.transport.Reader`."""

    def __init__(self, address: str, port: int, size: int, backend: str, timeout_s: float) -> None:
        """Joins the group that the sender describes, and waits for it."""
        self._store = join_store(address, port, timeout_s)
        rank = take_seat(self._store)
        self._device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        self._group = build_group(backend, self._store, rank, size, local_address(address), timeout_s)
        self._buffer = torch.empty(0, dtype=torch.uint8)

    @contextmanager
    def read(self, where: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
        """See `Reader`.

        Raises:
            RuntimeError: the trainer is gone.
        """
        if self._buffer.numel() < where["nbytes"]:
            self._buffer = torch.empty(where["nbytes"], dtype=torch.uint8, device=self._device)
        buffer = self._buffer[: where["nbytes"]]
        self._store.add(_ready(where["number"]), 1)
        broadcast(self._group, buffer)
        yield tensors_in(buffer, where["contents"])


def _ready(number: int) -> str:
    return f"ready/{number}"
