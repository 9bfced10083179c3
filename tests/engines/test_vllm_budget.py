"""`megarl drift budget` beside a real vLLM: parts of the engine's own, each measured with servers of its settings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_drift_budget import SIZES
from tests.runs import RECIPE, REPOSITORY

pytestmark = pytest.mark.vllm

QUANTISED = ["rollout.engine=vllm", "precision.dtype=bf16", "engine.quantization=fp8_per_channel"]


def test_a_quantised_servers_drift_is_its_quantisation(tmp_path: Path) -> None:
    """Three servers one after the other: in FP8, in bf16 and in fp32.

    E4M3 has 4 bits fewer than bf16 and errors 16 times as large: it is most of the drift, and the kernel nothing.
    """
    file = tmp_path / "budget.json"
    told = [*SIZES, *QUANTISED, f"output_dir={tmp_path / 'run'}", "--responses", "24", "--json", str(file)]
    ran = subprocess.run(
        [sys.executable, "-m", "megarl", "drift", "budget", RECIPE, *told],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(file.read_text())
    parts = {part["name"]: part for part in found["parts"]}
    assert list(parts) == ["precision, trainer", "kernel", "precision, engine", "quantisation, engine"]
    assert max(parts, key=lambda name: parts[name]["k3"]) == "quantisation, engine"
    assert parts["kernel"]["abs_mean"] < 1e-5 < parts["precision, engine"]["abs_mean"]
    # where FP8 moves a draw, the tokens behind it are not compared
    assert 0 < parts["quantisation, engine"]["tokens"] <= found["total"]["tokens"]
