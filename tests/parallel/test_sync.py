"""A sync gives a worker the same bytes whatever layout the trainer has, in bounded memory."""

from typing import Any

import pytest

from megarl.sync.digest import digest
from tests.parallel.sync_worker import TRANSPORTS
from tests.parallel.world import run_world
from tests.unit.megatron.tiny import noisy_weights, tiny_recipe

pytestmark = pytest.mark.parallel

DENSE: dict[str, Any] = {"tie_embeddings": False}
MOE: dict[str, Any] = {
    "family": "qwen3_moe",
    "tie_embeddings": False,
    "moe": {"num_experts": 4, "ffn_hidden_size": 20},
}
FOUR = {"dense": ({"tensor": 2, "pipeline": 2}, DENSE), "experts": ({"expert": 2, "pipeline": 2}, MOE)}
ONE: dict[str, Any] = {"dense": ({}, DENSE), "experts": ({}, MOE)}
WAYS = [f"{transport}{', delta' * delta}" for transport in TRANSPORTS for delta in (False, True)]
MIB = 2**20
MEMORY = {
    "sizes": {"tensor": 2, "pipeline": 2},
    "model": {
        "num_layers": 8,
        "hidden_size": 512,
        "ffn_hidden_size": 1024,
        "num_attention_heads": 8,
        "num_query_groups": 8,
        "head_dim": 64,
        "tie_embeddings": True,
    },
    "vocab": 8192,
    "bucket_mib": 16,
}
"""An embedding of 16 MiB and layers of 10 MiB: 96 MiB."""
SLACK = 4 * MIB
"""What Python's and gloo's own small allocations may come to."""


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the main one of four ranks saw."""
    folder = tmp_path_factory.mktemp("four")
    return run_world("tests.parallel.sync_worker:everything", 4, {"cases": FOUR, "memory": MEMORY}, 240, folder)[0]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a world of one saw."""
    return run_world("tests.parallel.sync_worker:everything", 1, {"cases": ONE}, 240, tmp_path_factory.mktemp("one"))[0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ONE)
def test_the_same_bytes_arrive_as_from_one_rank(
    four: dict[str, Any], one: dict[str, Any], model: str, way: str
) -> None:
    assert four[model][way] == one[model][way]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ONE)
def test_what_arrives_are_the_weights(one: dict[str, Any], model: str, way: str) -> None:
    read = noisy_weights(tiny_recipe(**ONE[model][1]).model)
    first, changed, again = one[model][way]["digests"]
    assert first == {name: digest(read(name)) for name in first}
    assert changed == again and not first.items() & changed.items()
    whole = sum(read(name).nbytes for name in first)
    assert one[model][way]["moved"] == [whole] * 3


def test_memory_is_two_buckets_and_a_gathered_parameter(four: dict[str, Any]) -> None:
    memory = four["memory"]
    bound = 2 * memory["bucket"] + memory["gathered"] + SLACK
    # else the bound would say nothing: all of the weights are more
    assert memory["peak"] <= bound < memory["weights"]
