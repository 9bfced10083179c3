"""A real SGLang server: what it samples, how its weights change, and what it says of faults."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from megarl.config.schema import Recipe
from megarl.rollout.engine import EngineError, EngineLost, ResponseAborted
from megarl.rollout.fleet import Fleet
from megarl.rollout.sglang.replica import SglangReplica
from megarl.rollout.sglang.wire import to_json
from megarl.rollout.types import Request, SamplingParams
from megarl.sync.disk import DiskSender
from megarl.sync.shared_memory import SharedMemorySender
from megarl.sync.transport import Sender
from tests.engines.sglang.servers import PYTHON, STOP, TOLERANCE, ask, distance, named_tensors, update, weights


@pytest.fixture(params=["shared_memory", "disk"])
def sender(request: pytest.FixtureRequest, recipe: Recipe) -> Iterator[Sender]:
    folder = Path(recipe.output_dir) / "sync"
    own: Sender = SharedMemorySender() if request.param == "shared_memory" else DiskSender(folder)
    yield own
    own.close()


@pytest.fixture
def memory() -> Iterator[Sender]:
    own = SharedMemorySender()
    yield own
    own.close()


def test_log_probs_follow_the_weights(replica: SglangReplica, recipe: Recipe, sender: Sender) -> None:
    for version, seed in ((7, 0), (8, 1)):
        read = weights(recipe.model, seed)
        assert update(replica, sender, named_tensors(recipe.model, read), version) == (None, [])
        # the second reads a prompt that the cache has
        for sample in range(2):
            completion = ask(replica, sample)
            assert [(span.version, span.start, span.end) for span in completion.versions] == [
                (version, 0, len(completion.token_ids))
            ]
            assert distance(completion, recipe, read).max() < TOLERANCE
            # had they been the other weights', the bound would tell
            assert distance(completion, recipe, weights(recipe.model, 1 - seed)).max() > 100 * TOLERANCE


def test_the_server_tells_its_release(replica: SglangReplica) -> None:
    tell = [PYTHON, "-c", "from importlib.metadata import version; print(version('sglang'))"]
    told = subprocess.run(tell, capture_output=True, text=True, check=True, timeout=60).stdout
    assert replica.release == told.strip()


def test_a_response_ends_with_the_stop_token_or_at_its_length(replica: SglangReplica) -> None:
    completions = [ask(replica, sample, tokens=12) for sample in range(12)]
    for completion in completions:
        ended = completion.token_ids[-1] == STOP
        assert completion.finish_reason == ("stop" if ended else "length")
        assert STOP not in completion.token_ids[:-1]
        assert ended or len(completion.token_ids) == 12
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}


def test_a_response_fills_the_context(replica: SglangReplica, recipe: Recipe) -> None:
    context = recipe.model.max_position_embeddings
    prompt = [2 + number % 11 for number in range(context - 8)]
    completion = ask(replica, 0, tokens=64, stop=12_345, prompt=prompt)
    # SGLang keeps two positions of the context to itself
    assert len(completion.token_ids) == 6 and completion.finish_reason == "length"


@pytest.mark.parametrize("kv_cache", ["recompute", "keep"])
def test_tokens_of_an_update_in_flight_are_of_the_version_that_they_say(
    kv_cache: str, replica: SglangReplica, recipe: Recipe, memory: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe.rl.asynchrony, "mode", "fully_async")
    monkeypatch.setattr(recipe.rl.asynchrony, "kv_cache", kv_cache)
    reads = {20: weights(recipe.model, 0), 21: weights(recipe.model, 1)}
    update(replica, memory, named_tensors(recipe.model, reads[20]), 20)
    completions = []
    # no token of the vocabulary ends it
    worker = threading.Thread(target=lambda: completions.append(ask(replica, 0, tokens=3000, stop=12_345)))
    worker.start()
    worker.join(0.3)
    assert worker.is_alive(), "the response was over before the update"
    update(replica, memory, named_tensors(recipe.model, reads[21]), 21)
    worker.join(120)
    (completion,) = completions
    assert [span.version for span in completion.versions] == [20, 21]
    assert completion.versions[0].end == completion.versions[1].start
    assert completion.versions[1].end == len(completion.token_ids) == 3000
    old, new = completion.versions
    apart_T = distance(completion, recipe, reads[21])[new.start :]
    assert distance(completion, recipe, reads[20])[: old.end].max() < TOLERANCE
    # behind keys and values of the old weights, tokens are the new weights' own in part
    assert (apart_T.max() < TOLERANCE) == (kv_cache == "recompute")
    # a request that begins now shares nothing with those
    assert distance(ask(replica, 0), recipe, reads[21]).max() < TOLERANCE


def test_what_is_cut_is_there_as_far_as_it_came(replica: SglangReplica, recipe: Recipe, memory: Sender) -> None:
    read = weights(recipe.model, 0)
    update(replica, memory, named_tensors(recipe.model, read), 22)
    timer = threading.Timer(0.3, replica.abort)
    timer.start()
    with pytest.raises(ResponseAborted) as cut:
        ask(replica, 0, tokens=3000, stop=12_345)
    timer.join()
    partial = cut.value.partial
    assert 0 < len(partial.token_ids) < 3000
    assert [(span.version, span.start, span.end) for span in partial.versions] == [(22, 0, len(partial.token_ids))]
    assert distance(partial, recipe, read).max() < TOLERANCE
    # what comes later is none of it
    assert len(ask(replica, 1, tokens=5, stop=12_345).token_ids) == 5


@pytest.mark.parametrize(
    "name",
    ["model.layers.1.self_attn.k_proj.weight", "lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"],
)
def test_a_tensor_that_is_not_sent_is_named(replica: SglangReplica, recipe: Recipe, memory: Sender, name: str) -> None:
    tensors = named_tensors(recipe.model, weights(recipe.model, 0))
    mismatch, left_out = update(
        replica, memory, tensors, 30, given={own: tensor for own, tensor in tensors.items() if own != name}
    )
    assert mismatch is not None and name in mismatch and "it was not sent, or under another name" in mismatch
    # the engine keeps queries, keys and values in one, of which the others came
    assert left_out == ([] if "k_proj" in name else [name])


def test_a_tensor_under_a_name_that_the_engine_does_not_know(
    replica: SglangReplica, recipe: Recipe, memory: Sender
) -> None:
    tensors = named_tensors(recipe.model, weights(recipe.model, 0))
    renamed = {name.replace("model.norm", "model.other_norm"): tensor for name, tensor in tensors.items()}
    mismatch, left_out = update(replica, memory, renamed, 31)
    # every byte arrived, and one tensor was passed over
    assert mismatch is None
    assert left_out == ["model.norm.weight"]


def test_tensors_that_changed_their_names_are_named(replica: SglangReplica, recipe: Recipe, memory: Sender) -> None:
    tensors = named_tensors(recipe.model, weights(recipe.model, 0))
    one, other = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"
    mismatch, left_out = update(
        replica, memory, tensors, 32, given=tensors | {one: tensors[other], other: tensors[one]}
    )
    assert mismatch is not None and f"the engine was given the bytes of {other} under this name" in mismatch
    assert not left_out


def test_a_transposed_tensor_is_named(replica: SglangReplica, recipe: Recipe, memory: Sender) -> None:
    tensors = named_tensors(recipe.model, weights(recipe.model, 0))
    name = "model.layers.0.self_attn.q_proj.weight"
    # it is square, so that the engine takes it
    mismatch, _ = update(replica, memory, tensors, 33, given=tensors | {name: tensors[name].T.contiguous()})
    assert mismatch is not None and name in mismatch and "transposed" in mismatch


def test_a_tensor_of_another_shape_does_not_end_the_server(
    replica: SglangReplica, recipe: Recipe, memory: Sender
) -> None:
    tensors = named_tensors(recipe.model, weights(recipe.model, 0))
    name = "model.norm.weight"
    with pytest.raises(EngineError, match="a worker of the engine could not load the weights"):
        update(replica, memory, tensors, 34, given=tensors | {name: tensors[name][1:]})
    replica._release()
    assert update(replica, memory, tensors, 35) == (None, [])
    assert distance(ask(replica, 3), recipe, weights(recipe.model, 0)).max() < TOLERANCE


def test_a_server_that_an_update_left_paused_goes_on(replica: SglangReplica, recipe: Recipe, memory: Sender) -> None:
    tensors = named_tensors(recipe.model, weights(recipe.model, 0))
    update(replica, memory, tensors, 40)
    replica.begin_update(memory.describe())
    replica._release()
    assert ask(replica, 0).versions[0].version == 40


def test_the_recorded_answer_has_the_keys_of_a_live_one(replica: SglangReplica, recipe: Recipe) -> None:
    recorded = json.loads((Path(__file__).parents[2] / "unit/rollout/sglang_answer.json").read_text())
    sampling = SamplingParams(temperature=0.7, max_new_tokens=24, stop_token_id=STOP)
    request = Request("a problem", 0, (5, 3, 9, 2, 7), "rl/3")
    live = replica._server.http.post("/generate", to_json(request, sampling, recipe.seed, 4096))
    assert set(live) == set(recorded)
    assert set(live["meta_info"]) == set(recorded["meta_info"])


@pytest.mark.parametrize(
    "path", ["/generate", "/update_weights_from_tensor", "/pause_generation", "/health", "/server_info"]
)
def test_nobody_without_the_token_is_served(replica: SglangReplica, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer guessed"}):
        with httpx2.Client(base_url=replica.url, headers=headers, trust_env=False) as stranger:
            assert stranger.post(path, json={}).status_code == 401


def test_the_token_is_in_no_log_and_on_no_command_line(replica: SglangReplica, recipe: Recipe) -> None:
    assert replica._server._process is not None
    token = replica._server.http._http.headers["Authorization"].removeprefix("Bearer ")
    assert token not in (Path(recipe.output_dir) / "engine/0/server.log").read_text()
    server = psutil.Process(replica._server._process._process.pid)
    assert all(token not in " ".join(one.cmdline()) for one in [server, *server.children(recursive=True)])


def test_a_killed_server_is_revived_and_loses_no_request(
    replica: SglangReplica, recipe: Recipe, memory: Sender
) -> None:
    """Last of all: it ends the server that the others use."""
    notes: list[str] = []
    fleet = Fleet([], max_concurrent=8, restarts=1, watch_every_s=1.0, note=notes.append)
    # its own start would start a second server
    fleet._replicas, fleet._starts = [replica], [1]
    assert replica._server._process is not None
    first = replica._server._process._process.pid
    requests = [Request(f"problem {number}", 0, (5, 3, number % 11), "rl/4") for number in range(24)]
    sampling = SamplingParams(temperature=0.7, max_new_tokens=480, stop_token_id=12_345)
    threading.Timer(0.5, os.killpg, (first, signal.SIGKILL)).start()
    with pytest.raises(EngineLost) as lost:
        fleet.generate(requests, sampling)
    assert len(lost.value.completions) < len(requests)
    assert fleet.revive()
    assert not psutil.pid_exists(first) and replica._server._process._process.pid != first
    read = weights(recipe.model, 1)
    assert update(replica, memory, named_tensors(recipe.model, read), 50) == (None, [])
    completions = fleet.generate(requests, sampling)
    assert [completion.request for completion in completions] == requests
    assert all(distance(completion, recipe, read).max() < TOLERANCE for completion in completions)
    assert any("is lost and is started again" in note for note in notes)
    with pytest.raises(EngineError, match=r"engine\.restarts are used up"):
        fleet._lost.add(0)
        fleet.revive()
