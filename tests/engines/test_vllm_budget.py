"""`megarl drift budget` beside a real vLLM: parts of the engine's own, each measured with servers of its settings."""

from pathlib import Path

import pytest

from tests.e2e.test_drift_budget import budget_of

pytestmark = pytest.mark.vllm

QUANTISED = ["rollout.engine=vllm", "precision.dtype=bf16", "engine.quantization=fp8_per_channel"]


def test_a_quantised_servers_drift_is_its_quantisation(tmp_path: Path) -> None:
    """Three servers one after the other: in FP8, in bf16 and in fp32.

    E4M3 has 4 bits fewer than bf16 and errors 16 times as large: it is most of the drift, and the kernel nothing.
    """
    found = budget_of(tmp_path, *QUANTISED, timeout_s=900)
    parts = {part["name"]: part for part in found["parts"]}
    assert list(parts) == ["precision, trainer", "kernel", "precision, engine", "quantisation, engine"]
    assert max(parts, key=lambda name: parts[name]["k3"]) == "quantisation, engine"
    assert parts["kernel"]["abs_mean"] < 1e-5 < parts["precision, engine"]["abs_mean"]
    # where FP8 moves a draw, the tokens behind it are not compared
    assert 0 < parts["quantisation, engine"]["tokens"] <= found["total"]["tokens"]
