"""Weights, updates, generation and checkpoints are the same under tensor, pipeline and data parallelism."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from megarl.objectives.normalisation import MODES
from tests.parallel.weights_worker import completions
from tests.parallel.world import run_world
from tests.unit.megatron.hf import hf_log_probs, tensor_names
from tests.unit.megatron.tiny import VOCAB, noisy_weights, random_batch, tiny_recipe

pytestmark = pytest.mark.parallel

LAYOUTS: dict[str, dict[str, int]] = {"tp2": {"tensor": 2}, "pp2": {"pipeline": 2}, "dp2": {}}
MODELS: dict[str, dict[str, Any]] = {
    "tied": {"tie_embeddings": True},
    "untied": {"tie_embeddings": False},
    "one group": {"num_query_groups": 1},
}
UPDATES = (0, 3)
Results = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


def run(nprocs: int, layouts: dict[str, dict[str, int]], updates: tuple[int, ...], folder: Path) -> Results:
    args = {"layouts": layouts, "models": MODELS, "updates_before_saving": updates}
    return run_world("tests.parallel.weights_worker:every_layout", nprocs, args, timeout_s=240, result_dir=folder)


@pytest.fixture(scope="module")
def split(folder: Path) -> Results:
    """What each of two ranks saw."""
    return run(2, LAYOUTS, UPDATES, folder / "two")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    """What a single process saw."""
    return run(1, {"one": {}}, (), folder / "one")[0]["one"]


each_layout: Callable[..., Any] = pytest.mark.parametrize("layout", LAYOUTS)
each_model: Callable[..., Any] = pytest.mark.parametrize("model", MODELS)


@each_layout
@each_model
def test_weights_come_back_as_they_went_in(split: Results, layout: str, model: str) -> None:
    config = tiny_recipe(**MODELS[model]).model
    read = noisy_weights(config)
    for rank in split:
        loaded = rank[layout][model]["loaded"]
        assert sorted(loaded) == sorted(tensor_names(config))
        assert all(torch.equal(tensor, read(name)) for name, tensor in loaded.items())
        assert rank[layout][model]["padding"] == 0


@each_layout
@each_model
def test_random_weights_are_the_same(split: Results, alone: dict[str, Any], layout: str, model: str) -> None:
    for rank in split:
        for name, tensor in rank[layout][model]["random"].items():
            assert torch.equal(tensor, alone[model]["random"][name]), name


@each_layout
@each_model
def test_log_probs_are_those_of_the_exported_folder(folder: Path, split: Results, layout: str, model: str) -> None:
    network = AutoModelForCausalLM.from_pretrained(folder / "two" / f"{layout}-{model}", attn_implementation="eager")
    assert network.config.vocab_size == VOCAB
    batch = random_batch(4)
    theirs = hf_log_probs(network, batch, 0.8).detach()[batch.mask_BT]
    for rank in split:
        ours = rank[layout][model]["log_probs"]
        assert ours.isnan().equal(~batch.mask_BT)
        torch.testing.assert_close(ours[batch.mask_BT], theirs, rtol=0.0, atol=1e-5)


@each_layout
@each_model
@pytest.mark.parametrize("mode", MODES)
def test_an_update_is_the_same(split: Results, alone: dict[str, Any], layout: str, model: str, mode: str) -> None:
    wanted = alone[model]["updates"][mode]
    assert wanted["numbers"]["grad_norm"] > 0.5, "the bound of the norm must be met"
    for rank in split:
        got = rank[layout][model]["updates"][mode]
        assert got["numbers"] == pytest.approx(wanted["numbers"], rel=1e-5, abs=1e-7)
        for name, tensor in got["weights"].items():
            torch.testing.assert_close(tensor, wanted["weights"][name], rtol=1e-5, atol=1e-6, msg=name)


@each_layout
def test_generation_on_all_ranks_is_generation_on_one(split: Results, layout: str) -> None:
    wanted = completions(0, 1)
    for rank in split:
        for got, one in zip(rank[layout]["completions"], wanted, strict=True):
            assert [(c.request, c.token_ids, c.finish_reason, c.versions) for c in got] == [
                (c.request, c.token_ids, c.finish_reason, c.versions) for c in one
            ]
            for a, b in zip(got, one, strict=True):
                assert a.log_probs == pytest.approx(b.log_probs, abs=1e-5)


@each_layout
@pytest.mark.parametrize("updates", UPDATES)
def test_a_resumed_policy_goes_on_bit_for_bit(split: Results, layout: str, updates: int) -> None:
    assert [rank[layout][f"resumed after {updates}"] for rank in split] == [[], []]


def test_a_new_world_resumes_bit_for_bit(split: Results, folder: Path) -> None:
    args = {"layouts": LAYOUTS, "updates": UPDATES[-1]}
    found = run_world("tests.parallel.weights_worker:load_saved", 2, args, timeout_s=240, result_dir=folder / "two")
    assert found == [{layout: [] for layout in LAYOUTS}] * 2
