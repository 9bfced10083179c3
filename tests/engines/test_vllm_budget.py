"""`megarl drift budget` beside a real vLLM: parts of the engine's own, each measured with servers of its settings."""

import json
from pathlib import Path

import pytest

from megarl.rollout.fleet import Fleet
from tests.e2e.test_drift_budget import SIZES
from tests.engines.attached import beside
from tests.engines.served import replica_of, token_of
from tests.forked_runs import megarl
from tests.runs import RECIPE

pytestmark = pytest.mark.vllm

QUANTISED = (
    *("model.init_from=null", "model.tie_embeddings=false", "precision.dtype=bf16", "rollout.engine=vllm"),
    *("engine.quantization=fp8_per_channel", "engine.kv_cache_gib=0.25"),
)


def test_a_quantised_servers_drift_is_its_quantisation(tmp_path: Path, untied_fleet: Fleet) -> None:
    """Three servers: those in FP8 and in fp32, which the command starts, and the session's in bf16.

    E4M3 has 4 bits fewer than bf16 and errors 16 times as large: it is most of the drift, and the kernel nothing.
    """
    file = tmp_path / "budget.json"
    told = [*SIZES, *QUANTISED, f"output_dir={tmp_path / 'run'}", "--responses", "24", "--json", str(file)]
    bf16 = ("bf16", replica_of(untied_fleet).url, token_of(untied_fleet))
    ran = megarl("drift", "budget", RECIPE, *told, start=beside, more=bf16, timeout_s=500)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(file.read_text())
    parts = {part["name"]: part for part in found["parts"]}
    assert list(parts) == ["precision, trainer", "kernel", "precision, engine", "quantisation, engine"]
    assert max(parts, key=lambda name: parts[name]["k3"]) == "quantisation, engine"
    assert parts["kernel"]["abs_mean"] < 1e-5 < parts["precision, engine"]["abs_mean"]
    # where FP8 moves a draw, the tokens behind it are not compared
    assert 0 < parts["quantisation, engine"]["tokens"] <= found["total"]["tokens"]
