"""Several servers as one: who gets which request, and one that is lost while others still talk to it."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from megarl.rollout import Completion, Request, SamplingParams
from megarl.rollout.engine import EngineLost
from megarl.rollout.fleet import Fleet
from megarl.rollout.replica import ServerUnreachableError
from tests.unit.rollout.simulated_replica import LENGTH, SimulatedReplica, fleet_of

SAMPLING = SamplingParams(1.0, LENGTH, 1)


def requests(problems: int, samples: int) -> list[Request]:
    return [
        Request(f"p{problem}", sample, (5, 6, 7), "rl/0") for problem in range(problems) for sample in range(samples)
    ]


def test_a_group_goes_to_one_server_and_the_load_is_even() -> None:
    replicas = [SimulatedReplica(name) for name in "abc"]
    for replica in replicas:
        replica.finish()
    asked = requests(7, 4)
    assert [done.request for done in fleet_of(*replicas).generate(asked, SAMPLING)] == asked
    groups = [Counter(request.problem_id for request in replica.asked) for replica in replicas]
    assert all(set(group.values()) == {4} for group in groups)
    assert sorted(len(group) for group in groups) == [2, 2, 3]


def test_the_others_take_over_from_a_server_that_is_lost() -> None:
    replicas = [SimulatedReplica(name) for name in "ab"]
    dying, other = replicas
    other.finish()
    fleet = fleet_of(*replicas)
    asked, found = requests(6, 2), list[Completion]()
    worker = threading.Thread(target=lambda: found.extend(fleet.generate(asked, SAMPLING)))
    worker.start()
    dying.wait_asked(4)
    dying.end()
    worker.join(30)
    assert [done.request for done in found] == asked
    # what the first round left at the one that was lost, once more, and nothing of the other's
    assert Counter(other.asked) == Counter(asked)
    assert fleet.counts() == {"engine/restarts": 0, "engine/lost_responses": 6}
    assert fleet.live() == [1]


class Hung(SimulatedReplica):
    """It takes requests, and says nothing more."""

    def responsive(self) -> bool:
        return False


@pytest.mark.parametrize("ask", [Fleet.generate, Fleet.generate_on_each], ids=lambda ask: ask.__name__)
def test_a_server_that_hangs_is_found_while_it_is_waited_for(ask: Callable[..., Any]) -> None:
    fleet = fleet_of(Hung("a"))
    with pytest.raises(EngineLost):
        ask(fleet, requests(2, 2), SAMPLING)
    assert fleet.lost


class SlowToEnd(SimulatedReplica):
    """Its requests fail at once, and its first end takes until a test lets it."""

    def __init__(self) -> None:
        super().__init__("a")
        self.is_ending, self.may_end = threading.Event(), threading.Event()

    def generate(self, request: Request, sampling: SamplingParams) -> Completion:
        raise ServerUnreachableError(self.url)

    def responsive(self) -> bool:
        return False

    def end(self) -> None:
        if not self.is_ending.is_set():
            self.is_ending.set()
            assert self.may_end.wait(30)
        super().end()


def test_who_finds_a_server_lost_does_not_end_the_one_that_was_started_in_its_place() -> None:
    replica = SlowToEnd()
    fleet = fleet_of(replica)
    finder = threading.Thread(target=fleet.generate_at, args=(0, requests(1, 1)[0], SAMPLING))
    finder.start()
    assert replica.is_ending.wait(30) and fleet.lost
    reviver = threading.Thread(target=fleet.revive)
    reviver.start()
    # long enough for it to start the server, did it not wait for the finder
    reviver.join(0.3)
    replica.may_end.set()
    for thread in (finder, reviver):
        thread.join(30)
    assert replica.alive and not fleet.lost


def test_what_is_known_of_the_server_before_does_not_end_the_next() -> None:
    """The watcher asked the old one, and gets no answer once the new one is there."""
    replica = SimulatedReplica("a")
    fleet = fleet_of(replica)
    starts = fleet._starts[0]
    fleet._lose(0, "it does not answer", starts)
    assert fleet.revive() and replica.alive
    fleet._lose(0, "it does not answer", starts)
    assert replica.alive and not fleet.lost


def test_what_ends_with_the_fleet_is_not_told_as_lost() -> None:
    notes: list[str] = []
    replica = SimulatedReplica("a")
    fleet = fleet_of(replica, notes=notes)
    worker = threading.Thread(target=fleet.generate_at, args=(0, requests(1, 1)[0], SAMPLING))
    worker.start()
    replica.wait_asked(1)
    fleet.close()
    worker.join(30)
    assert not worker.is_alive() and not notes
