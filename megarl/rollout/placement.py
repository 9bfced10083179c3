"""Which server generates which response, and how a response says so."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from megarl.rollout.types import Completion, Request


def placed(requests: Sequence[Request], servers: Sequence[int]) -> list[int]:
    """A server for each request: all of a prompt at one, which then reads it once, and at the one with the least."""
    load = dict.fromkeys(servers, 0)
    of_group: dict[tuple[str, str], int] = {}
    for group, count in Counter(map(group_of, requests)).items():
        of_group[group] = min(load, key=lambda server: load[server])
        load[of_group[group]] += count
    return [of_group[group_of(request)] for request in requests]


def group_of(request: Request) -> tuple[str, str]:
    """What requests of one prompt have in common; they go to one server."""
    return request.stream, request.problem_id


def written_by(server: int, completion: Completion) -> Completion:
    """The completion, each of whose spans names the server."""
    return replace(completion, versions=tuple(replace(span, replica=server) for span in completion.versions))
