"""Requests that a fleet works on while the trainer trains, through weight updates and lost servers."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field

from megarl.rollout.continued import joined, rest_of
from megarl.rollout.engine import EngineLost, ResponseAborted
from megarl.rollout.fleet import Fleet
from megarl.rollout.placement import group_of
from megarl.rollout.types import Completion, Request, SamplingParams

_POLL_S = 0.1
_ABORT_AGAIN_S = 1.0


@dataclass
class Ticket:
    """One request under way.

    Attributes:
        request: what was asked for.
        sampling: how.
        begun: the response as far as it is known here; whole once `future` is done.
        future: the whole response.
    """

    request: Request
    sampling: SamplingParams
    begun: Completion | None = None
    future: "Future[Completion]" = field(default_factory=Future)


class Stream:
    """Lives on the main rank, whose main thread alone calls it; its own threads only talk to servers.

    Requests are begun in the order in which they were submitted, and none while servers lack weights. What a lost
    server had is run again by the others, or once the fleet was revived and has its weights.
    """

    def __init__(self, fleet: Fleet, *, drop_spanning: bool) -> None:
        """Args: fleet: the servers. drop_spanning: whether a response of older weights is begun anew."""
        self._dropped = 0
        self._fleet, self._drop_spanning = fleet, drop_spanning
        self._tickets: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._held = self._closed = False
        self._at: dict[int, int] = {}
        self._home: dict[tuple[str, str], tuple[int, int]] = {}
        self._threads: list[threading.Thread] = []
        self._stop_watching = threading.Event()

    def submit(self, request: Request, sampling: SamplingParams, begun: Completion | None = None) -> Ticket:
        """Has the request worked on, unless what has begun is whole. Args: see `Ticket`."""
        ticket = Ticket(request, sampling, begun)
        if begun is not None and begun.finish_reason != "abort":
            ticket.future.set_result(begun)
            return ticket
        if not self._threads:
            self._begin_thread(self._fleet.watch, self._stop_watching)
        if len(self._threads) <= self._fleet.slots:
            self._begin_thread(self._work)
        self._tickets.put(ticket)
        return ticket

    def wait(self, tickets: Sequence[Ticket], stop: Callable[[], bool] = lambda: False) -> bool:
        """Waits until all are done; returns False where `stop` became true before.

        Raises:
            EngineLost: no server is left; once they are revived and have weights, the work goes on.
            EngineError: a server refused a request.
        """
        futures = [ticket.future for ticket in tickets]
        while True:
            done, pending = wait(futures, timeout=_POLL_S, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            if not pending:
                return True
            if stop():
                return False
            if not self._fleet.live():
                raise EngineLost("no engine is left")

    def hold(self) -> None:
        """Cuts what is under way and begins nothing, until `go_on`; each ticket then has what there is of it."""
        with self._changed:
            self._held = True
        while True:
            # again, for requests that were on their way to the server the time before
            self._fleet.abort()
            with self._changed:
                if self._changed.wait_for(lambda: sum(self._at.values()) == 0, timeout=_ABORT_AGAIN_S):
                    return

    def go_on(self) -> None:
        """Ends `hold`."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def take_dropped(self) -> int:
        """Responses of older weights that were begun anew since this was last asked."""
        with self._changed:
            dropped, self._dropped = self._dropped, 0
        return dropped

    def close(self) -> None:
        """Begins nothing more. What is under way ends with the servers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._stop_watching.set()
        for _ in self._threads:
            self._tickets.put(None)

    def _begin_thread(self, target: Callable[..., None], *arguments: object) -> None:
        # a daemon: a server of somebody else's that says nothing must not keep the trainer from ending
        thread = threading.Thread(target=target, args=arguments, name="rollout", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (ticket := self._tickets.get()) is not None:
            try:
                done = self._whole(ticket)
            except BaseException as error:
                ticket.future.set_exception(error)
            else:
                if done:
                    assert ticket.begun is not None
                    ticket.future.set_result(ticket.begun)

    def _whole(self, ticket: Ticket) -> bool:
        """Works on one request until it is done; False where the stream was closed before."""
        while (server := self._enter(ticket.request)) is not None:
            part: Completion | None = None
            try:
                if self._is_older(ticket.begun):
                    self._drop(ticket)
                request, sampling = rest_of(ticket.request, ticket.sampling, ticket.begun)
                part = self._fleet.generate_at(server, request, sampling)
            except ResponseAborted as aborted:
                part = aborted.partial
            finally:
                # before it is counted as gone: who holds the stream reads what there is
                if part is not None:
                    ticket.begun = joined(ticket.request, ticket.begun, part)
                self._leave(ticket.request, server)
            if part is None:
                self._fleet.count_lost(1)
            elif part.finish_reason != "abort":
                return True
        return False

    def _is_older(self, begun: Completion | None) -> bool:
        spans = begun.versions if begun is not None and self._drop_spanning else ()
        return any(span.version != self._fleet.version for span in spans)

    def _drop(self, ticket: Ticket) -> None:
        with self._changed:
            self._dropped += 1
        ticket.begun = None

    def _enter(self, request: Request) -> int | None:
        """Waits until the request may begin; the server for it: its group's, or the one with the least to do."""
        group = group_of(request)
        with self._changed:
            # what the fleet does tells nobody here, hence the time-out
            while not (live := self._able()):
                if self._closed:
                    return None
                self._changed.wait(_POLL_S)
            server, members = self._home.get(group, (-1, 0))
            if server not in live:
                server = min(live, key=lambda number: self._at.get(number, 0))
            self._home[group] = (server, members + 1)
            self._at[server] = self._at.get(server, 0) + 1
            return server

    def _able(self) -> list[int]:
        """The servers that a request may begin at now."""
        return [] if self._closed or self._held or self._fleet.version < 0 else self._fleet.live()

    def _leave(self, request: Request, server: int) -> None:
        group = group_of(request)
        with self._changed:
            self._at[server] -= 1
            home, members = self._home.pop(group)
            if members > 1:
                self._home[group] = (home, members - 1)
            self._changed.notify_all()
