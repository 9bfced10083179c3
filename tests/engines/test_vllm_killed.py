"""A real vLLM that is killed, loses its core, or hangs: in a rollout, in a sync, and while idle."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psutil
import pytest

from megarl.config.schema import Recipe
from megarl.megatron.policy import Policy
from megarl.megatron.world import Layout
from megarl.rollout.build import build_fleet
from megarl.rollout.distribute import generate_at_servers
from megarl.rollout.fleet import Fleet
from megarl.rollout.types import Completion, Request, SamplingParams
from megarl.rollout.vllm.replica import VllmReplica
from megarl.sync.push import ServedSync
from tests.engines.served import FP32_TOLERANCE, SAMPLING, VOCAB, farthest, policy_of, reload, requests

pytestmark = [pytest.mark.vllm, pytest.mark.engine_faults]


def group(pid: int) -> None:
    os.killpg(pid, signal.SIGKILL)


def core(pid: int) -> None:
    cores = [child for child in psutil.Process(pid).children(recursive=True) if "EngineCore" in child.cmdline()[0]]
    assert cores
    for child in cores:
        child.kill()


def stop(pid: int) -> None:
    os.killpg(pid, signal.SIGSTOP)


def stop_core(pid: int) -> None:
    for child in psutil.Process(pid).children(recursive=True):
        child.suspend()


Harm = Callable[[int], None]


class DoomedReplica(VllmReplica):
    """A real server that something happens to at a chosen call."""

    harm: Harm | None = None
    where = ""
    calls = 0

    def doom(self, harm: Harm, where: str, calls: int = 1) -> None:
        self.harm, self.where, self.calls = harm, where, calls

    def strike(self) -> None:
        assert self._server._process is not None and self.harm is not None
        harm, self.harm = self.harm, None
        harm(self._server._process._process.pid)

    def _at(self, where: str) -> None:
        if self.harm is not None and where == self.where:
            self.calls -= 1
            if self.calls == 0:
                self.strike()

    def generate(self, request: Request, sampling: SamplingParams) -> Completion:
        self._at("generate")
        return super().generate(request, sampling)

    def receive(self, bucket: Mapping[str, Any], digests_of: Sequence[str] | None) -> None:
        self._at("receive")
        super().receive(bucket, digests_of)

    def finish_update(self, version: int) -> None:
        self._at("finish")
        super().finish_update(version)


@pytest.fixture(scope="module")
def own_recipe(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    engine = replace(recipe.engine, health_timeout_s=15.0, update_timeout_s=12.0)
    return replace(recipe, engine=engine, output_dir=str(tmp_path_factory.mktemp("doomed")))


@pytest.fixture(scope="module")
def own_fleet(own_recipe: Recipe) -> Iterator[Fleet]:
    made = build_fleet(own_recipe, VOCAB, print)
    try:
        made.revive()
        made._replicas[0].__class__ = DoomedReplica
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def policy(own_recipe: Recipe, layout: Layout) -> Policy:
    return policy_of(own_recipe, layout, seed=30)


@pytest.fixture(scope="module")
def sync(own_recipe: Recipe, policy: Policy, own_fleet: Fleet) -> Iterator[ServedSync]:
    made = ServedSync(own_recipe, policy, own_fleet)
    made.push(0)
    yield made
    made.close()


def doomed(fleet: Fleet) -> DoomedReplica:
    (replica,) = fleet._replicas
    assert isinstance(replica, DoomedReplica)
    return replica


def rolled_out(fleet: Fleet, sync: ServedSync, version: int) -> list[Completion]:
    return generate_at_servers(fleet, requests(12), SAMPLING, 1, lambda: sync.push(version))


@pytest.mark.parametrize("harm", [core, stop_core], ids=lambda harm: harm.__name__)
def test_in_a_rollout(harm: Harm, own_fleet: Fleet, sync: ServedSync) -> None:
    """No response is lost, doubled or another than without it."""
    own_fleet.counts()
    version = own_fleet.version
    whole = rolled_out(own_fleet, sync, version)
    doomed(own_fleet).doom(harm, "generate", calls=20)
    assert rolled_out(own_fleet, sync, version) == whole
    counts = own_fleet.counts()
    assert counts["engine/restarts"] == 1
    assert 0 < counts["engine/lost_responses"] <= 36 - 19 + 16


@pytest.mark.parametrize(
    ("harm", "where"),
    [(core, "receive"), (stop, "receive"), (core, "finish")],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_in_a_sync(harm: Harm, where: str, own_fleet: Fleet, sync: ServedSync, policy: Policy) -> None:
    """The server comes back with the new weights, all of them."""
    own_fleet.counts()
    version = own_fleet.version + 1
    reload(policy, seed=40 + version)
    doomed(own_fleet).doom(harm, where)
    sync.push(version)
    assert own_fleet.counts() == {"engine/restarts": 1, "engine/lost_responses": 0}
    completions = own_fleet.generate(requests(4), SAMPLING)
    assert {span.version for done in completions for span in done.versions} == {version}
    assert farthest(policy, completions) < FP32_TOLERANCE


def test_while_idle(own_fleet: Fleet, sync: ServedSync, policy: Policy) -> None:
    own_fleet.counts()
    version = own_fleet.version
    whole = rolled_out(own_fleet, sync, version)
    doomed(own_fleet).doom(group, "idle")
    doomed(own_fleet).strike()
    assert rolled_out(own_fleet, sync, version) == whole
    assert own_fleet.counts()["engine/restarts"] == 1


def test_nothing_is_left_of_the_killed(own_fleet: Fleet) -> None:
    """Not even a zombie: of all that ran, one server and its children."""
    children = psutil.Process().children()
    process = doomed(own_fleet)._server._process
    assert process is not None
    folder = str(doomed(own_fleet)._server._folder)
    of_this = [child for child in children if folder in child.cmdline() or child.status() == psutil.STATUS_ZOMBIE]
    assert [child.pid for child in of_this] == [process._process.pid]
