"""Two real vLLM servers as one engine: both get the weights, share the work, and one takes over from the other."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from megarl.config.schema import Recipe
from megarl.megatron.policy import Policy
from megarl.megatron.world import Layout
from megarl.rollout.build import build_fleet
from megarl.rollout.fleet import Fleet
from megarl.rollout.types import Completion, Request, SamplingParams
from megarl.rollout.vllm.replica import VllmReplica
from megarl.sync.push import ServedSync
from tests.engines.served import FP32_TOLERANCE, SAMPLING, VOCAB, farthest, policy_of, reload, requests

pytestmark = [pytest.mark.vllm, pytest.mark.engine_faults]

PROMPTS = 10


class WatchedReplica(VllmReplica):
    """A real server whose requests are noted, and which is killed at a chosen one."""

    asked: list[Request]
    numbers: Iterator[int]
    dies_at = 0

    def generate(self, request: Request, sampling: SamplingParams) -> Completion:
        self.asked.append(request)
        # each thread gets another number, where the list's length may be the same for two
        if next(self.numbers) == self.dies_at:
            assert self._server._process is not None
            # with its children, as the machine's own killer does
            self._server._process.end()
        return super().generate(request, sampling)


@pytest.fixture(scope="module")
def two(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    engine = replace(recipe.engine, replicas=2, kv_cache_gib=0.25)
    return replace(recipe, engine=engine, output_dir=str(tmp_path_factory.mktemp("two")))


@pytest.fixture(scope="module")
def servers(two: Recipe) -> Iterator[Fleet]:
    made = build_fleet(two, VOCAB, print)
    try:
        made.revive()
        for replica in made._replicas:
            replica.__class__ = WatchedReplica
        watched(made)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def policy(two: Recipe, layout: Layout) -> Policy:
    return policy_of(two, layout, seed=50)


@pytest.fixture(scope="module")
def sync(two: Recipe, policy: Policy, servers: Fleet) -> Iterator[ServedSync]:
    made = ServedSync(two, policy, servers)
    made.push(0)
    yield made
    made.close()


def watched(fleet: Fleet) -> list[WatchedReplica]:
    """Both, with nothing noted yet."""
    found = []
    for replica in fleet._replicas:
        assert isinstance(replica, WatchedReplica)
        replica.asked, replica.numbers, replica.dies_at = [], count(1), 0
        found.append(replica)
    return found


def test_both_get_the_weights(servers: Fleet, sync: ServedSync, policy: Policy) -> None:
    watched(servers)
    assert servers.workers() == 2
    one, other = servers.received_digests()
    assert one == other and len(one) == len(sync._specs)
    for answers in servers.generate_on_each(requests(3), SAMPLING):
        assert farthest(policy, answers) < FP32_TOLERANCE


def test_they_share_the_work_and_a_group_stays_at_one(servers: Fleet, sync: ServedSync, policy: Policy) -> None:
    one, other = watched(servers)
    asked = requests(PROMPTS)
    completions = servers.generate(asked, SAMPLING)
    assert [done.request for done in completions] == asked
    assert farthest(policy, completions) < FP32_TOLERANCE
    groups = [Counter(request.problem_id for request in replica.asked) for replica in (one, other)]
    assert not groups[0].keys() & groups[1].keys()
    assert [sum(group.values()) for group in groups] == [len(asked) // 2] * 2


def test_one_takes_over_from_the_other_until_that_is_back(servers: Fleet, sync: ServedSync, policy: Policy) -> None:
    """No response is lost, doubled or another than it would have been; the next sync brings both up to date."""
    asked = requests(PROMPTS)
    watched(servers)
    whole = servers.generate(asked, SAMPLING)
    dying, other = watched(servers)
    servers.counts()
    dying.dies_at = 6
    assert servers.generate(asked, SAMPLING) == whole
    assert servers.live() == [1]
    assert len(other.asked) > len(asked) // 2
    counts = servers.counts()
    assert counts["engine/restarts"] == 0 and 0 < counts["engine/lost_responses"] <= len(asked) // 2
    reload(policy, seed=51)
    sync.push(1)
    assert servers.live() == [0, 1] and servers.counts()["engine/restarts"] == 1
    first, second = servers.received_digests()
    # a restart has all of them compared again
    assert first == second and len(first) == len(sync._specs)
    watched(servers)
    assert all(farthest(policy, answers) < FP32_TOLERANCE for answers in servers.generate_on_each(asked, SAMPLING))
