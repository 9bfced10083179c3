"""One or several servers as one engine: spreads requests, keeps groups together, outlives a server that dies."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, TypeVar

from megarl.rollout.ctrl_c import at_ctrl_c
from megarl.rollout.engine import EngineError, EngineLost, ResponseAborted
from megarl.rollout.placement import placed, written_by
from megarl.rollout.replica import Replica, ServerUnreachableError
from megarl.rollout.types import Completion, Request, SamplingParams

_TRIES = 3
"""Of one request at a server that is alive and whose connection failed."""

COUNTS = ("engine/restarts", "engine/lost_responses")
"""Servers started again, and responses that were lost with their server and generated again."""

Result = TypeVar("Result")


class Fleet:
    """Implements `megarl.rollout.engine.ServedEngine`."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        max_concurrent: int,
        restarts: int,
        watch_every_s: float,
        note: Callable[[str], None],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Starts the servers, and does not wait for them.

        Args:
            replicas: the servers.
            max_concurrent: requests that one works on at once.
            restarts: times that a server is started again, over all.
            watch_every_s: pause between two questions whether a server still answers, while it generates.
            note: is told, in a sentence, of what a user should know.
            is_stopped: whether the run was told to stop, and waits for no server any more.
        """
        self.version = -1
        self._replicas = list(replicas)
        self._max_concurrent, self._restarts_left, self._watch_every_s = max_concurrent, restarts, watch_every_s
        self._note, self._is_stopped = note, is_stopped
        self._lock = threading.Lock()
        self._lost: set[int] = set()
        self._counts = dict.fromkeys(COUNTS, 0)
        self._starts = [1] * len(self._replicas)
        for replica in self._replicas:
            replica.start()
        # not known to be up; `revive` waits for them
        self._starting = set(range(len(self._replicas)))
        # one that never was up has a mistake in its settings, which starting it again mends not
        self._was_up: set[int] = set()

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """See `Engine`.

        Raises:
            EngineLost: no server is left; it carries what was done.
        """
        done: dict[int, Completion] = {}
        with self._watched():
            while len(done) < len(requests):
                live = self.live()
                if not live:
                    raise EngineLost("no engine is left", done)
                waiting = [number for number in range(len(requests)) if number not in done]
                done |= self._round(requests, waiting, live, sampling)
                lost = len(requests) - len(done)
                if lost:
                    self.count_lost(lost)
                    self._note(f"{lost} responses were lost with their engine and are generated again")
        return [done[number] for number in range(len(requests))]

    def generate_on_each(self, requests: Sequence[Request], sampling: SamplingParams) -> list[list[Completion]]:
        """See `ServedEngine`."""
        with self._watched():
            answers = [self._round(requests, range(len(requests)), [server], sampling) for server in self.live()]
        if self._lost:
            raise EngineLost("an engine is lost")
        return [[done[number] for number in range(len(requests))] for done in answers]

    def count_lost(self, responses: int) -> None:
        """Notes that so many were lost with their server. Threads may call it."""
        with self._lock:
            self._counts["engine/lost_responses"] += responses

    def counts(self) -> dict[str, int]:
        """`COUNTS` since it was last asked."""
        with self._lock:
            counts, self._counts = self._counts, dict.fromkeys(COUNTS, 0)
        return counts

    @property
    def lost(self) -> bool:
        """See `ServedEngine`."""
        return bool(self._lost)

    def workers(self) -> int:
        """See `ServedEngine`: of all servers."""
        return sum(self._on_all(lambda replica: replica.workers()))

    @property
    def releases(self) -> list[str]:
        """Of the servers' software, each once; of those that were up."""
        return sorted({replica.release for replica in self._replicas} - {""})

    @property
    def slots(self) -> int:
        """Requests that all servers work on at once."""
        return self._max_concurrent * len(self._replicas)

    def begin_update(self, transport: Mapping[str, Any]) -> None:
        """See `ServedEngine`."""
        self.version = -1
        self._on_all(lambda replica: replica.begin_update(transport))

    def receive(self, bucket: Mapping[str, Any], digests_of: Sequence[str] | None = None) -> None:
        """See `ServedEngine`."""
        self._on_all(lambda replica: replica.receive(bucket, digests_of))

    def received_digests(self) -> list[dict[str, str]]:
        """See `ServedEngine`: of all workers of all servers."""
        return [worker for workers in self._on_all(lambda replica: replica.received_digests()) for worker in workers]

    def finish_update(self, version: int) -> list[str]:
        """See `ServedEngine`."""
        self._on_all(lambda replica: replica.finish_update(version))
        self.version = version
        return sorted({name for names in self._on_all(lambda replica: replica.left_out()) for name in names})

    def revive(self) -> bool:
        """See `ServedEngine`."""
        for number in sorted(self._lost):
            self._start_again(number)
        fresh = bool(self._starting)
        while self._starting:
            number = min(self._starting)
            try:
                self._replicas[number].wait_until_ready(self._is_stopped)
            except EngineError as error:
                if number not in self._was_up or self._is_stopped():
                    raise
                self._note(str(error))
                self._start_again(number)
                continue
            self._starting.discard(number)
            self._was_up.add(number)
        return fresh

    def close(self) -> None:
        """See `ServedEngine`."""
        # what threads still wait for fails now, and is no loss to tell of
        self._lost.update(range(len(self._replicas)))
        for replica in self._replicas:
            replica.end()

    def _start_again(self, server: int) -> None:
        if self._restarts_left == 0:
            raise EngineError(
                f"{self._replicas[server].url} is lost, and engine.restarts are used up; its log may say why"
            )
        self._restarts_left -= 1
        # first: a request in the background must not go to a server that has no weights yet
        self.version = -1
        self._note(f"{self._replicas[server].url} is lost and is started again")
        # whoever found it lost may not have ended it yet, and must not end the new one
        with self._lock:
            self._counts["engine/restarts"] += 1
            self._replicas[server].end()
            self._replicas[server].start()
            self._starts[server] += 1
            self._starting.add(server)
            self._lost.discard(server)

    def _round(
        self, requests: Sequence[Request], waiting: Sequence[int], live: Sequence[int], sampling: SamplingParams
    ) -> dict[int, Completion]:
        """Each waiting request once at the server that it is given to; what a lost server had is left out."""
        place = placed([requests[number] for number in waiting], live)
        threads = ThreadPoolExecutor(self._max_concurrent * len(live), thread_name_prefix="rollout")
        with threads as pool, at_ctrl_c(self.close):
            futures = {
                number: pool.submit(self.generate_at, server, requests[number], sampling)
                for number, server in zip(waiting, place, strict=True)
            }
            try:
                return {number: done for number, future in futures.items() if (done := future.result()) is not None}
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def generate_at(self, server: int, request: Request, sampling: SamplingParams) -> Completion | None:
        """One response of one server; None where that server was lost, or is not up again. Threads may call it.

        Raises:
            EngineError: the server refused, or was told to drop it.
        """
        replica, starts = self._replicas[server], self._starts[server]
        for _ in range(_TRIES):
            if server in self._lost or server in self._starting or self._starts[server] != starts:
                return None
            try:
                return written_by(server, replica.generate(request, sampling))
            except ResponseAborted as aborted:
                aborted.partial = written_by(server, aborted.partial)
                raise
            except (ServerUnreachableError, EngineError) as error:
                if server in self._lost or self._starts[server] != starts:
                    continue
                if not replica.responsive():
                    self._lose(server, str(error), starts)
                elif isinstance(error, EngineError):
                    # a server that lives and refuses: another try would be refused too
                    raise
        self._lose(server, f"{_TRIES} tries of one request failed", starts)
        return None

    def abort(self) -> None:
        """Cuts every response under way at the live servers; see `Replica.abort`."""
        for server in self.live():
            starts = self._starts[server]
            try:
                self._replicas[server].abort()
            except ServerUnreachableError as error:
                self._lose(server, str(error), starts)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """While responses are waited for here, a thread watches the servers."""
        stop = threading.Event()
        watcher = threading.Thread(target=self.watch, args=(stop,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()

    def watch(self, stop: threading.Event) -> None:
        """Until `stop` is set: kills a server that has weights and says nothing."""
        while not stop.wait(self._watch_every_s):
            for server in self.live():
                starts = self._starts[server]
                # while it loads weights it may have no time to answer
                if self.version < 0 or self._replicas[server].responsive():
                    continue
                if self.version >= 0 and not stop.is_set():
                    self._lose(server, "it does not answer", starts)

    def _lose(self, server: int, why: str, starts: int) -> None:
        """Ends a server that is lost, unless that is known. Args: starts: its number of starts when it seemed up."""
        with self._lock:
            if server in self._lost or starts != self._starts[server]:
                return
            self._lost.add(server)
            url = self._replicas[server].url
            # with it the connections of all its requests, which would wait for a hung server
            self._replicas[server].end()
        self._note(f"{url} is lost: {why}")

    def live(self) -> list[int]:
        """Numbers of the servers that are not lost."""
        return [server for server in range(len(self._replicas)) if server not in self._lost]

    def _on_all(self, call: Callable[[Replica], Result]) -> list[Result]:
        """The call at every server at once.

        Raises:
            EngineLost: one of them did not answer, and is lost.
        """
        if self._lost:
            raise EngineLost(f"{self._replicas[min(self._lost)].url} is lost")
        unreachable = refused = None
        starts = list(self._starts)
        with ThreadPoolExecutor(len(self._replicas), thread_name_prefix="update") as pool, at_ctrl_c(self.close):
            futures = {pool.submit(call, replica): server for server, replica in enumerate(self._replicas)}
            for future in as_completed(futures):
                server, error = futures[future], future.exception()
                dead = isinstance(error, EngineError) and not self._replicas[server].responsive()
                if dead or isinstance(error, ServerUnreachableError):
                    # at once: a broadcast to the others waits for it
                    self._lose(server, str(error), starts[server])
                    unreachable = error
                elif error is not None:
                    refused = error
        if unreachable is not None:
            # what others refused may follow from this: a broadcast ends at all where it ends at one
            raise EngineLost(str(unreachable)) from unreachable
        if refused is not None:
            raise refused
        return [future.result() for future in futures]
