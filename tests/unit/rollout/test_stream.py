"""Requests in the background: begun in order, cut and continued, run again when their server is lost."""

import threading
from dataclasses import replace

import pytest

from megarl.rollout import Completion, Request, SamplingParams, VersionSpan
from megarl.rollout.continued import joined, rest_of
from megarl.rollout.engine import EngineLost
from megarl.rollout.stream import Stream
from tests.unit.rollout.simulated_replica import CUT, LENGTH, SimulatedReplica, fleet_of

SAMPLING = SamplingParams(1.0, LENGTH, 1)


def requests(problems: int = 2, samples: int = 2) -> list[Request]:
    return [
        Request(f"p{problem}", sample, (5, 6, 7), "rl/0") for problem in range(problems) for sample in range(samples)
    ]


def response(tokens: tuple[int, ...], reason: str, *spans: tuple[int, int, int]) -> Completion:
    versions = tuple(VersionSpan(*span) for span in spans)
    request = requests()[0]
    return Completion(request, tokens, tuple(-float(token) for token in tokens), reason, versions)  # type: ignore[arg-type]


def test_the_rest_begins_behind_what_there_is_and_draws_other_numbers() -> None:
    request = requests()[0]
    begun = response((8, 9), "abort", (3, 0, 2))
    rest, sampling = rest_of(request, SAMPLING, begun)
    assert rest.prompt_ids == (5, 6, 7, 8, 9)
    assert sampling.max_new_tokens == LENGTH - 2
    assert rest.stream != request.stream
    assert (rest.problem_id, rest.sample) == (request.problem_id, request.sample)
    for nothing in (None, response((), "abort")):
        assert rest_of(request, SAMPLING, nothing) == (request, SAMPLING)


def test_parts_are_joined_token_by_token() -> None:
    request = requests()[0]
    begun, rest = response((8, 9), "abort", (3, 0, 2)), response((4, 5, 1), "stop", (3, 0, 1), (4, 1, 3))
    whole = joined(request, begun, rest)
    assert whole.request == request
    assert whole.token_ids == (8, 9, 4, 5, 1)
    assert whole.log_probs == (-8, -9, -4, -5, -1)
    assert whole.versions == (VersionSpan(3, 0, 3), VersionSpan(4, 3, 5))
    assert whole.finish_reason == "stop"
    assert joined(request, None, rest).token_ids == rest.token_ids


def test_parts_of_two_servers_stay_apart() -> None:
    begun, rest = response((8, 9), "abort", (3, 0, 2)), response((4,), "stop", (3, 0, 1))
    begun, rest = (
        replace(each, versions=tuple(replace(span, replica=server) for span in each.versions))
        for server, each in enumerate((begun, rest))
    )
    spans = joined(requests()[0], begun, rest).versions
    assert [(span.start, span.end, span.replica) for span in spans] == [(0, 2, 0), (2, 3, 1)]


def test_a_fleet_says_which_server_wrote_what() -> None:
    first, second = SimulatedReplica("a"), SimulatedReplica("b")
    fleet = fleet_of(first, second)
    first.finish(), second.finish()
    responses = fleet.generate(requests(2, 2), SAMPLING)
    wrote = [{span.replica for span in each.versions} for each in responses]
    assert wrote == [{0}, {0}, {1}, {1}], "a prompt's responses are of one server"


def test_what_a_server_was_made_to_drop_is_its_own_too() -> None:
    replica = SimulatedReplica("a")
    stream = Stream(fleet_of(replica), drop_spanning=False)
    ticket = stream.submit(requests()[0], SAMPLING)
    replica.wait_asked(1)
    stream.hold()
    assert ticket.begun is not None
    assert [span.replica for span in ticket.begun.versions] == [0]
    stream.close()


def test_requests_begin_in_the_order_in_which_they_came_and_no_more_than_fit() -> None:
    replica = SimulatedReplica("a")
    stream = Stream(fleet_of(replica, at_once=1), drop_spanning=False)
    tickets = [stream.submit(request, SAMPLING) for request in requests(3, 2)]
    replica.wait_asked(1)
    assert len(replica.asked) == 1, "one at once"
    replica.finish()
    assert stream.wait(tickets)
    assert replica.asked == requests(3, 2)
    assert [ticket.future.result().request for ticket in tickets] == requests(3, 2)
    stream.close()


def test_a_group_stays_at_one_server_and_groups_are_spread() -> None:
    replicas = SimulatedReplica("a"), SimulatedReplica("b")
    stream = Stream(fleet_of(*replicas, at_once=4), drop_spanning=False)
    tickets = [stream.submit(request, SAMPLING) for request in requests(2, 4)]
    for replica in replicas:
        replica.wait_asked(4)
        assert len({request.problem_id for request in replica.asked}) == 1
    for replica in replicas:
        replica.finish()
    assert stream.wait(tickets)
    stream.close()


def test_what_was_held_goes_on_where_it_was() -> None:
    replica = SimulatedReplica("a")
    stream = Stream(fleet_of(replica), drop_spanning=False)
    tickets = [stream.submit(request, SAMPLING) for request in requests()]
    replica.wait_asked(4)
    stream.hold()
    assert [len(ticket.begun.token_ids) for ticket in tickets if ticket.begun] == [CUT] * 4
    assert len(replica.asked) == 4, "nothing begins while it is held"
    replica.version = 1
    replica.finish()
    stream.go_on()
    assert stream.wait(tickets)
    for ticket in tickets:
        whole = ticket.future.result()
        # the prompt has three tokens, so the first is a 3, and the rest counts on
        assert whole.token_ids == tuple(range(3, 3 + LENGTH))
        assert whole.versions == (VersionSpan(0, 0, CUT), VersionSpan(1, CUT, LENGTH))
    assert set(replica.limits[4:]) == {LENGTH - CUT}
    assert stream.dropped == 0
    stream.close()


@pytest.mark.parametrize("drop", [True, False])
def test_an_update_that_cuts_responses_drops_them_only_where_the_recipe_says_so(drop: bool) -> None:
    replica = SimulatedReplica("a")
    fleet = fleet_of(replica)
    stream = Stream(fleet, drop_spanning=drop)
    tickets = [stream.submit(request, SAMPLING) for request in requests()]
    replica.wait_asked(4)
    fleet.begin_update({})
    replica.finish()
    fleet.finish_update(1)
    assert stream.wait(tickets)
    expected = (VersionSpan(1, 0, LENGTH),) if drop else (VersionSpan(0, 0, CUT), VersionSpan(1, CUT, LENGTH))
    assert {ticket.future.result().versions for ticket in tickets} == {expected}
    assert stream.dropped == (4 if drop else 0)
    stream.close()


def test_what_is_known_already_is_not_asked_for() -> None:
    """Of a checkpoint: whole responses stay, begun ones are finished, the others are run."""
    replica = SimulatedReplica("a")
    replica.finish()
    stream = Stream(fleet_of(replica), drop_spanning=False)
    known = [response((8, 1), "stop", (0, 0, 2)), response((3, 4), "abort", (0, 0, 2)), None]
    tickets = [stream.submit(request, SAMPLING, each) for request, each in zip(requests(3, 1), known, strict=True)]
    assert stream.wait(tickets)
    assert [ticket.future.result().token_ids for ticket in tickets] == [(8, 1), (3, 4, 5, 6, 7, 8), (3, 4, 5, 6, 7, 8)]
    assert len(replica.asked) == 2
    stream.close()


def test_the_other_server_takes_over_from_one_that_is_lost() -> None:
    dying, other = SimulatedReplica("a"), SimulatedReplica("b")
    other.finish()
    fleet = fleet_of(dying, other)
    stream = Stream(fleet, drop_spanning=False)
    tickets = [stream.submit(request, SAMPLING) for request in requests()]
    dying.wait_asked(2)
    dying.end()
    assert stream.wait(tickets)
    assert fleet.counts()["engine/lost_responses"] == 2
    assert sorted(request.sample for request in other.asked) == [0, 0, 1, 1]
    stream.close()


def test_nothing_begins_at_a_server_that_has_no_weights_yet() -> None:
    """All are lost: the wait ends, and once they are revived and updated the same tickets are done."""
    replica = SimulatedReplica("a")
    fleet = fleet_of(replica)
    stream = Stream(fleet, drop_spanning=False)
    tickets = [stream.submit(request, SAMPLING) for request in requests()]
    replica.wait_asked(4)
    replica.end()
    with pytest.raises(EngineLost):
        stream.wait(tickets)
    assert fleet.revive()
    replica.finish()
    assert not threading.Event().wait(0.5)
    assert len(replica.asked) == 4, "it has no weights"
    fleet.begin_update({})
    fleet.finish_update(7)
    assert stream.wait(tickets)
    assert {ticket.future.result().versions for ticket in tickets} == {(VersionSpan(7, 0, LENGTH),)}
    assert fleet.counts()["engine/lost_responses"] == 4
    stream.close()


def test_the_wait_ends_where_it_is_told_to() -> None:
    replica = SimulatedReplica("a")
    stream = Stream(fleet_of(replica), drop_spanning=False)
    ticket = stream.submit(requests()[0], SAMPLING)
    assert not stream.wait([ticket], stop=lambda: True)
    replica.finish()
    assert stream.wait([ticket])
    stream.close()
