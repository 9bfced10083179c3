"""Who may talk to a server that a run starts, what shows its token, and servers that somebody else left behind."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import packages_distributions, version
from pathlib import Path

import httpx2
import psutil
import pytest

from megarl.config.schema import Recipe
from megarl.megatron.policy import Policy
from megarl.megatron.world import Layout
from megarl.rollout.build import build_fleet
from megarl.rollout.fleet import Fleet
from megarl.sync.bucket import Bucket, TensorSpec
from megarl.sync.push import ServedSync
from tests.engines.served import (
    FP32_TOLERANCE,
    SAMPLING,
    VOCAB,
    farthest,
    policy_of,
    replica_of,
    requests,
    token_of,
)

pytestmark = pytest.mark.vllm

PATHS = ("/health", "/is_paused", "/server_info", "/openapi.json", "/metrics", "/v1/models")
ORDERS = (
    "/pause",
    "/collective_rpc",
    "/inference/v1/generate",
    "/start_weight_update",
    "/update_weights",
    "/v1/completions",
)


def family_of(fleet: Fleet) -> list[psutil.Process]:
    process = replica_of(fleet)._server._process
    assert process is not None
    front = psutil.Process(process._process.pid)
    return [front, *front.children(recursive=True)]


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer"}, {"Authorization": "Bearer guess"}], ids=str)
def test_every_path_asks_for_the_token(header: dict[str, str], fleet: Fleet) -> None:
    with httpx2.Client(base_url=replica_of(fleet).url, headers=header, trust_env=False) as http:
        answers = {path: http.get(path).status_code for path in PATHS}
        answers |= {path: http.post(path, json={}).status_code for path in ORDERS}
    assert answers == dict.fromkeys((*PATHS, *ORDERS), 401)


def test_the_server_listens_on_loopback_alone(fleet: Fleet) -> None:
    listening = {
        connection.laddr.ip
        for process in family_of(fleet)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening and listening <= {"127.0.0.1", "::1"}


def test_the_server_tells_its_release(fleet: Fleet) -> None:
    # its CPU build is a package of another name
    (package,) = set(packages_distributions()["vllm"])
    assert fleet.releases == [version(package)]


def test_the_token_is_written_nowhere(recipe: Recipe, fleet: Fleet, notes: list[str]) -> None:
    token = token_of(fleet)
    assert len(token) >= 32
    shown = [word for process in family_of(fleet) for word in process.cmdline()]
    shown += [repr(recipe), *notes]
    shown += [path.read_text(errors="replace") for path in Path(recipe.output_dir).rglob("*") if path.is_file()]
    assert len(shown) > 20 and not [text for text in shown if token in text]


@pytest.fixture
def attached(recipe: Recipe, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """The session's server as another run meets it, by its address."""
    monkeypatch.setenv(recipe.engine.token_variable, token_of(fleet))
    made = build_fleet(replace(recipe, engine=replace(recipe.engine, urls=[replica_of(fleet).url])), VOCAB, print)
    yield made
    made.close()


def test_a_server_that_a_dead_trainer_left_in_an_update(
    recipe: Recipe, fleet: Fleet, attached: Fleet, layout: Layout
) -> None:
    """It is paused, and a part of its layers is loaded: the next run's first sync brings up all of it."""
    policy = policy_of(recipe, layout, seed=11)
    half = ServedSync(recipe, policy, fleet)
    assert half._sender is not None
    fleet.begin_update(half._sender.describe())
    tensors = policy.export()
    # the embedding, a whole layer, and less than half of another
    for slot, count in enumerate((13, 4)):
        named = [next(tensors) for _ in range(count)]
        bucket = Bucket.of([TensorSpec(name, tuple(tensor.shape), tensor.dtype) for name, tensor in named])
        fleet.receive(half._sender.write(slot, bucket, [tensor for _, tensor in named]))
    half.close()

    other = policy_of(recipe, layout, seed=12)
    whole = ServedSync(recipe, other, attached)
    whole.push(7)
    completions = attached.generate(requests(4), SAMPLING)
    assert {span.version for done in completions for span in done.versions} == {7}
    assert farthest(other, completions) < FP32_TOLERANCE
    whole.close()
    assert family_of(fleet)[0].is_running()


def test_settings_that_are_not_the_recipes_are_refused(
    recipe: Recipe, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(recipe.engine.token_variable, token_of(fleet))
    engine = replace(recipe.engine, urls=[replica_of(fleet).url], dtype="bf16")
    made = build_fleet(replace(recipe, engine=engine), VOCAB, print)
    with pytest.raises(Exception, match=r"runs with dtype=.*float32, and the recipe needs bfloat16"):
        made.revive()
    made.close()


def test_an_attached_server_outlives_the_run(recipe: Recipe, fleet: Fleet, layout: Layout) -> None:
    """What the tests above closed was the way to it; the run that started it still rolls out."""
    policy: Policy = policy_of(recipe, layout, seed=13)
    sync = ServedSync(recipe, policy, fleet)
    sync.push(8)
    assert farthest(policy, fleet.generate(requests(4), SAMPLING)) < FP32_TOLERANCE
    sync.close()
