"""Weights of a model with experts as transformers saves it, through Megatron-core, and as transformers reads it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from megarl.loop.convert import convert
from megarl.megatron.hf_folder import hf_folder, saved_weights
from tests.parallel.world import run_world
from tests.unit.megatron.hf import hf_log_probs, hf_model, tensor_names
from tests.unit.megatron.tiny import noisy_weights, random_batch, tiny_recipe

pytestmark = pytest.mark.parallel

MODELS: dict[str, dict[str, Any]] = {
    "moe": {"family": "qwen3_moe", "tie_embeddings": False, "moe": {"num_experts": 4, "ffn_hidden_size": 20}}
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "ep2": {"expert": 2},
    "tp2 + sequence": {"tensor": 2, "sequence": True},
    "pp2": {"pipeline": 2},
}
"""That weights come back as they were is seen under every layout of `layouts.py`."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as transformers saves it in `source`, and as each layout wrote it."""
    folder = tmp_path_factory.mktemp("moe")
    model = tiny_recipe(**MODELS["moe"]).model
    network = hf_model(model, noisy_weights(model), torch.float32)
    network.save_pretrained(folder / "source" / "moe")
    args = {
        "layouts": LAYOUTS,
        "models": MODELS,
        "source": str(folder / "source"),
        "shard_bytes": 12_000,
        "checkpointed": "moe",
    }
    found = run_world("tests.parallel.moe_worker:everything", 2, args, 120, folder)
    torch.save(found, folder / "found")
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resumed_run_goes_on_bit_by_bit(folder: Path, layout: str) -> None:
    for rank in torch.load(folder / "found", weights_only=False):
        assert rank["resumed"][layout] == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_converts_to_the_same_weights(folder: Path, layout: str) -> None:
    convert(folder / f"run-{layout}", folder / f"converted {layout}", 12_000)
    updated = torch.load(folder / "found", weights_only=False)[0]["trips"][layout]["moe"]["updated"]
    read = saved_weights(folder / f"converted {layout}")
    assert all(torch.equal(tensor, read(name)) for name, tensor in updated.items())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_round_trip_is_bit_equal_and_transformers_reads_it(folder: Path, layout: str) -> None:
    source, target = folder / "source" / "moe", folder / f"{layout}-moe"
    names = sorted(hf_folder(target).files)
    assert names == sorted(hf_folder(source).files) == sorted(tensor_names(tiny_recipe(**MODELS["moe"]).model))
    before, after = saved_weights(source), saved_weights(target)
    assert all(torch.equal(before(name), after(name)) for name in names)
    network, notes = AutoModelForCausalLM.from_pretrained(target, output_loading_info=True)
    assert not any(notes[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    batch = random_batch(4)
    theirs = hf_log_probs(network, batch).detach()[batch.mask_BT]
    for rank in torch.load(folder / "found", weights_only=False):
        ours = rank["trips"][layout]["moe"]["log_probs"][batch.mask_BT]
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-5)
