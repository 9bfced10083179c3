"""Each family from Hugging Face to Megatron-core and back, under two layouts and in little memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from megarl.checkpoint.shards import ShardWriter
from megarl.cli import main
from megarl.config.model import ModelConfig
from megarl.megatron.hf_folder import INDEX, hf_folder, saved_weights
from megarl.megatron.models import FAMILIES
from megarl.megatron.weights import random_weights
from tests.parallel.families_worker import round_trips
from tests.parallel.world import run_world
from tests.unit.megatron.hf import hf_log_probs, hf_model, tensor_names
from tests.unit.megatron.test_weights_hf import SCALED_ROPE
from tests.unit.megatron.tiny import VOCAB, noisy_weights, random_batch, tiny_recipe

pytestmark = pytest.mark.parallel

LAYOUTS: dict[str, dict[str, int]] = {"tp2": {"tensor": 2}, "pp2": {"pipeline": 2}}
OWN = {"llama": SCALED_ROPE, "qwen2": {}, "qwen3": {"head_dim": 16}}
MODELS: dict[str, dict[str, Any]] = {
    f"{family}-{'tied' if tied else 'untied'}": {"family": family, "tie_embeddings": tied, **own}
    for family, own in OWN.items()
    for tied in (True, False)
}
SHARD_BYTES = 12_000
"""Of models of about 44,000 bytes."""

CHECKPOINTED = "qwen3-untied"
# 24 layers of 4.2 MB, so that a shard is 1/12 of the model
BIG: dict[str, Any] = {
    "family": "qwen3",
    "num_layers": 24,
    "hidden_size": 256,
    "ffn_hidden_size": 1024,
    "num_attention_heads": 4,
    "num_query_groups": 4,
    "head_dim": 64,
}
BIG_SHARD = 8_400_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the worlds write; `source` holds each model as transformers saves it, in shards."""
    folder = tmp_path_factory.mktemp("families")
    for name, keys in MODELS.items():
        model = tiny_recipe(**keys).model
        network = hf_model(model, noisy_weights(model), torch.float32)
        network.save_pretrained(folder / "source" / name, max_shard_size=SHARD_BYTES)
        assert (folder / "source" / name / INDEX).is_file()
    return folder


@pytest.fixture(scope="module")
def big(folder: Path) -> Path:
    """Random weights of the larger model, in shards."""
    model, source = ModelConfig(**BIG), folder / "big"
    source.mkdir()
    writer, read = ShardWriter(source, BIG_SHARD), random_weights(model, VOCAB, 0)
    for name, _, _ in FAMILIES[model.family].tensor_shapes(model, VOCAB):
        writer.add(name, read(name))
    writer.finish()
    assert len(list(source.glob("*.safetensors"))) >= 12
    return source


def trips(folder: Path, layouts: dict[str, dict[str, int]]) -> dict[str, Any]:
    return {
        "layouts": layouts,
        "models": MODELS,
        "source": str(folder / "source"),
        "shard_bytes": SHARD_BYTES,
        "checkpointed": CHECKPOINTED,
    }


@pytest.fixture(scope="module")
def ranks(folder: Path, big: Path) -> list[dict[str, Any]]:
    """What each of two ranks saw."""
    memory = {"layouts": LAYOUTS, "model": BIG, "source": str(big), "shard_bytes": BIG_SHARD}
    return run_world(
        "tests.parallel.families_worker:everything",
        2,
        {"memory": memory, "trips": trips(folder, LAYOUTS)},
        timeout_s=240,
        result_dir=folder / "two",
    )


@pytest.fixture(scope="module")
def split(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rank["trips"] for rank in ranks]


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    """What a single process saw."""
    found = round_trips(0, 1, trips(folder, {"one": {}}), folder / "one")
    torch.distributed.destroy_process_group()
    return found["one"]


each_layout: Callable[..., Any] = pytest.mark.parametrize("layout", LAYOUTS)
each_model: Callable[..., Any] = pytest.mark.parametrize("model", MODELS)


@each_layout
@each_model
def test_the_round_trip_is_bit_equal(folder: Path, split: list[dict[str, Any]], layout: str, model: str) -> None:
    source, target = folder / "source" / model, folder / "two" / f"{layout}-{model}"
    assert sorted(hf_folder(source).files) == sorted(tensor_names(tiny_recipe(**MODELS[model]).model))
    assert_equal(source, target)
    shards = sorted(target.glob("*.safetensors"))
    assert len(shards) > 1 and (target / INDEX).is_file()
    for shard in shards:
        held = [saved_weights(source)(name) for name, file in hf_folder(target).files.items() if file == shard]
        assert len(held) == 1 or sum(tensor.nbytes for tensor in held) <= SHARD_BYTES


@each_layout
@each_model
def test_log_probs_are_those_of_the_exported_folder(
    folder: Path, split: list[dict[str, Any]], layout: str, model: str
) -> None:
    network, notes = AutoModelForCausalLM.from_pretrained(
        folder / "two" / f"{layout}-{model}", attn_implementation="eager", output_loading_info=True
    )
    assert not any(notes[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    batch = random_batch(4)
    theirs = hf_log_probs(network, batch).detach()[batch.mask_BT]
    for rank in split:
        torch.testing.assert_close(rank[layout][model]["log_probs"][batch.mask_BT], theirs, rtol=0.0, atol=1e-5)


@each_layout
@each_model
def test_an_update_is_the_same(split: list[dict[str, Any]], alone: dict[str, Any], layout: str, model: str) -> None:
    """With queries and keys normalised too, whose weights every tensor rank holds and sees a part of the heads of."""
    wanted = alone[model]
    for rank in split:
        got = rank[layout][model]
        assert got["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-5)
        for name, tensor in got["updated"].items():
            torch.testing.assert_close(tensor, wanted["updated"][name], rtol=1e-5, atol=1e-6, msg=name)


@each_layout
@pytest.mark.parametrize("given", ["run", "checkpoint"])
def test_a_checkpoint_of_any_layout_is_converted(
    folder: Path, ranks: list[dict[str, Any]], layout: str, given: str, tmp_path: Path
) -> None:
    run = folder / "two" / f"run-{layout}"
    source = run if given == "run" else run / "checkpoints" / "1-rl-00000001"
    # a name that is there is no obstacle where it is an empty folder
    (tmp_path / "model").mkdir()
    assert main(["convert", str(source), str(tmp_path / "model"), "--shard-gb", f"{SHARD_BYTES / 1e9}"]) == 0
    wanted = ranks[0]["trips"][layout][CHECKPOINTED]["updated"]
    assert sorted(hf_folder(tmp_path / "model").files) == sorted(wanted)
    read = saved_weights(tmp_path / "model")
    assert all(torch.equal(read(name), tensor) for name, tensor in wanted.items())
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("1+2").input_ids


def test_weights_stream(big: Path, folder: Path, ranks: list[dict[str, Any]]) -> None:
    """Peak extra memory of every rank is under two shards, to read and to write.

    Reading holds one parameter's tensors and what they are merged to: 2 x 2.1 MB of gate and up. Writing holds a shard
    and that parameter, gathered: its shards and the whole, 8.4 + 2 x 2.1 MB. Two shards are 16.8 MB. To hold a whole
    model would take 101 MB.
    """
    for rank in ranks:
        for layout, found in rank["memory"].items():
            assert found["model"] > 5 * BIG_SHARD
            assert found["read"] < 2 * BIG_SHARD, (layout, found)
            assert found["write"] < 2 * BIG_SHARD, (layout, found)
    for layout in LAYOUTS:
        assert_equal(big, folder / "two" / layout)


def assert_equal(one: Path, other: Path) -> None:
    """The same tensors, bit for bit."""
    assert sorted(hf_folder(one).files) == sorted(hf_folder(other).files)
    ours, theirs = saved_weights(one), saved_weights(other)
    assert all(torch.equal(ours(name), theirs(name)) for name in hf_folder(one).files)
