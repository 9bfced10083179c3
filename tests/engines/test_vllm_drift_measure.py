"""`megarl drift measure` beside a real vLLM that runs already: weights from a run and from a folder, fp32, bf16."""

import subprocess
from pathlib import Path

import pytest

from megarl.rollout.fleet import Fleet
from megarl.rollout.server_process import free_port
from tests.engines.served import replica_of, token_of
from tests.forked_runs import megarl, train
from tests.runs import RECIPE

pytestmark = pytest.mark.vllm

# a server looks at the whole machine when it is first asked for its settings
KEYS = ("rollout.engine=vllm", "rollout.max_new_tokens=24", "sync.bucket_mib=1", "engine.health_timeout_s=60")


def measured(url: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    asked = ("--engine", url, "--responses", "24", *words)
    return megarl("drift", "measure", RECIPE, *KEYS, f"output_dir={folder}", *asked, timeout_s=400)


@pytest.fixture
def url(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the session's server in fp32, whose token is in the environment."""
    monkeypatch.setenv("MEGARL_ENGINE_TOKEN", token_of(fleet))
    return replica_of(fleet).url


@pytest.fixture
def bf16_url(untied_fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> str:
    """Likewise of the one in bf16."""
    monkeypatch.setenv("MEGARL_ENGINE_TOKEN", token_of(untied_fleet))
    return replica_of(untied_fleet).url


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run with checkpoints of its steps 2 and 4."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    done = train(f"output_dir={folder}", "rl.steps=4", "checkpoint.every=2", "evaluate.samples_per_prompt=0")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def older(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of step 2 in Hugging Face layout."""
    target = tmp_path_factory.mktemp("converted") / "older"
    source = next((run / "checkpoints").glob("*-rl-00000002"))
    done = megarl("convert", str(source), str(target))
    assert done.returncode == 0, done.stderr
    return target


def test_weights_of_a_folder_and_of_a_run_and_those_that_the_server_keeps(
    run: Path, older: Path, url: str, tmp_path: Path
) -> None:
    first = measured(url, tmp_path / "out", "--trainer", str(older))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "No cause: both sides are as near as this precision allows." in first.stdout
    assert "Floor: the model is" in first.stdout and "from itself in fp64" in first.stdout
    # the server still has the weights of step 2
    stale = measured(url, tmp_path / "out", "--trainer", str(run), "--keep-weights", "--older", str(older))
    assert stale.returncode == 1, stale.stdout + stale.stderr
    assert "1. stale_weights, on the engine's side: " in stale.stdout and "1 version(s) before" in stale.stdout
    # random weights: every token has alternatives
    narrow = measured(url, tmp_path / "out", "--engine-top-p", "0.8")
    assert narrow.returncode == 1, narrow.stdout + narrow.stderr
    assert "1. truncation, on the engine's side: its log-probs are those with top-p 0.8," in narrow.stdout
    assert "keeps a mass of 0.8" in narrow.stdout
    other = measured(url, tmp_path / "out", "--trainer", str(run), "precision.dtype=bf16")
    assert other.returncode == 2, other.stdout + other.stderr
    assert "runs with dtype=torch.float32, and the recipe needs bfloat16" in other.stderr
    assert not (tmp_path / "out").exists()


def test_bf16_beside_a_trainer_in_bf16_and_in_fp32(bf16_url: str, tmp_path: Path) -> None:
    own_head = "model.tie_embeddings=false"
    both = measured(bf16_url, tmp_path / "out", own_head, "precision.dtype=bf16")
    assert both.returncode == 0, both.stdout + both.stderr
    assert "No cause: both sides are as near as this precision allows." in both.stdout
    assert "from itself in fp32" in both.stdout
    mixed = measured(bf16_url, tmp_path / "out", own_head, "engine.dtype=bf16")
    assert mixed.returncode == 1, mixed.stdout + mixed.stderr
    assert "1. dtype, on the engine's side: its log-probs are those of bf16" in mixed.stdout
    assert "from itself in fp64" in mixed.stdout


def test_a_server_in_fp8_beside_a_trainer_in_fp32(tmp_path: Path) -> None:
    """One that the command starts; its scales are rows', and its 16 bits are named with them."""
    quantised = ("engine.dtype=bf16", "engine.quantization=fp8_per_channel", "--trainer", "tests/data/base")
    keys = ("rollout.engine=vllm", f"output_dir={tmp_path / 'out'}", "--responses", "48")
    found = megarl("drift", "measure", RECIPE, *keys, *quantised, timeout_s=400)
    assert found.returncode == 1, found.stdout + found.stderr
    assert "1. fp8, on the engine's side: its log-probs are those of linear layers in bf16 whose" in found.stdout
    assert "rounded to E4M3 with a scale for each row" in found.stdout


def test_no_server_there(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    gone = measured(url, tmp_path / "out", "engine.start_timeout_s=2")
    assert gone.returncode == 2, gone.stdout + gone.stderr
    assert gone.stderr.startswith("megarl: error: ") and gone.stderr.count("\n") == 1 and url in gone.stderr
