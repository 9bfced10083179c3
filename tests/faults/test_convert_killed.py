"""`megarl convert` killed by SIGKILL in the middle, and started again."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from megarl.checkpoint.shards import ShardWriter
from megarl.config.model import ModelConfig
from megarl.megatron.hf_folder import INDEX, check_saved_weights, saved_weights
from megarl.megatron.models import FAMILIES
from megarl.megatron.weights import random_weights
from tests.forked_runs import megarl
from tests.runs import REPOSITORY, environment

pytestmark = pytest.mark.parallel

# 48 layers of 1.3 MB: hundreds of files, each synced to the disk
SHAPE = {"family": "llama", "num_layers": 48, "hidden_size": 128, "ffn_hidden_size": 512, "num_attention_heads": 4}
MODEL = ModelConfig(**SHAPE, tie_embeddings=False)  # type: ignore[arg-type]
VOCAB = 13
SHARD_GB = "0.0004"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    writer, read = ShardWriter(folder), random_weights(MODEL, VOCAB, 0)
    for name, _, _ in FAMILIES["llama"].tensor_shapes(MODEL, VOCAB):
        writer.add(name, read(name))
    writer.finish()
    FAMILIES["llama"].hf_config(MODEL, VOCAB).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("parts", [1, 30, 100])
def test_nothing_half_written_looks_whole(source: Path, tmp_path: Path, parts: int) -> None:
    target, beside = tmp_path / "new", tmp_path / ".new.writing"
    words = ("convert", str(source), str(target), "--shard-gb", SHARD_GB)
    command = [sys.executable, "-m", "megarl", *words]
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while len(list(beside.glob("*.part"))) < parts:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        process.kill()
        assert process.wait(timeout=30) == -signal.SIGKILL
    assert not target.exists() and beside.is_dir()
    assert not (beside / INDEX).exists() and not list(beside.glob("*.safetensors"))
    again = megarl(*words)
    assert again.returncode == 0, again.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    check_saved_weights(target, MODEL, VOCAB)
    ours, theirs = saved_weights(target), saved_weights(source)
    for name, _, _ in FAMILIES["llama"].tensor_shapes(MODEL, VOCAB):
        assert torch.equal(ours(name), theirs(name))
