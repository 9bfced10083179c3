"""A server in this process whose responses end when a test says so: what a real one does cannot be timed so."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from megarl.rollout import Completion, Request, SamplingParams, VersionSpan
from megarl.rollout.engine import ResponseAborted
from megarl.rollout.fleet import Fleet
from megarl.rollout.replica import ServerUnreachableError

LENGTH = 6
CUT = 2
"""Tokens of a response that is whole, and of one that was cut."""


class SimulatedReplica:
    """Responses wait for `finish`; one that is cut has its first tokens. A token is the number of those before it."""

    def __init__(self, name: str) -> None:
        self.url, self.release = name, ""
        self.asked: list[Request] = []
        self.limits: list[int] = []
        self.alive, self.version = True, 0
        self._changed = threading.Condition()
        self._finishing, self._cuts = False, 0

    def start(self) -> None:
        self.alive = True

    def wait_until_ready(self, give_up: Callable[[], bool]) -> None:
        self.release = "1.0"

    def generate(self, request: Request, sampling: SamplingParams) -> Completion:
        with self._changed:
            self.asked.append(request)
            self.limits.append(sampling.max_new_tokens)
            self._changed.notify_all()
            cuts, version = self._cuts, self.version
            self._changed.wait_for(lambda: self._finishing or self._cuts > cuts or not self.alive)
            if not self.alive:
                raise ServerUnreachableError(self.url)
            cut = self._cuts > cuts
            version = version if cut else self.version
        tokens = tuple(len(request.prompt_ids) + place for place in range(CUT if cut else sampling.max_new_tokens))
        spans = (VersionSpan(version, 0, len(tokens)),)
        reason = "abort" if cut else "length"
        completion = Completion(request, tokens, (-1.0,) * len(tokens), reason, spans)  # type: ignore[arg-type]
        if cut:
            raise ResponseAborted(completion)
        return completion

    def responsive(self) -> bool:
        return self.alive

    def begin_update(self, transport: Mapping[str, Any]) -> None:
        self.abort()

    def receive(self, bucket: Mapping[str, Any], digests_of: Sequence[str] | None) -> None:
        """It takes no weights."""

    def received_digests(self) -> list[dict[str, str]]:
        return [{}]

    def left_out(self) -> list[str]:
        return []

    def finish_update(self, version: int) -> None:
        self.version = version

    def abort(self) -> None:
        with self._changed:
            self._cuts += 1
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self.alive = False
            self._changed.notify_all()

    def finish(self) -> None:
        """From here on every response is made whole at once."""
        with self._changed:
            self._finishing = True
            self._changed.notify_all()

    def wait_asked(self, count: int) -> None:
        """Returns once so many requests have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, timeout=30), self.asked


def fleet_of(*replicas: SimulatedReplica, at_once: int = 4, notes: list[str] | None = None) -> Fleet:
    """A fleet that has its weights."""
    told: list[str] = [] if notes is None else notes
    fleet = Fleet(replicas, max_concurrent=at_once, restarts=1, watch_every_s=0.05, note=told.append)
    fleet.revive()
    fleet.version = 0
    return fleet
