"""Which server generates which response, and how a response says so."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from megarl.rollout.types import Completion, Request


def placed(requests: Sequence[Request], servers: Sequence[int]) -> list[int]:
    """A server for each request: all of a prompt at one, which then reads it once, and at the one with the least."""
    load = dict.fromkeys(servers, 0)
    of_prompt: dict[str, int] = {}
    for name, count in Counter(request.problem_id for request in requests).items():
        of_prompt[name] = min(load, key=lambda server: load[server])
        load[of_prompt[name]] += count
    return [of_prompt[request.problem_id] for request in requests]


def written_by(server: int, completion: Completion) -> Completion:
    """The completion, each of whose spans names the server."""
    return replace(completion, versions=tuple(replace(span, replica=server) for span in completion.versions))
