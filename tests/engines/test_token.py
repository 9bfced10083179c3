"""The token of servers that run already: a run gets in with it, and writes it nowhere."""

from pathlib import Path

import pytest

from tests.engines.simulated import simulated_server
from tests.forked_runs import train

pytestmark = pytest.mark.parallel

SECRET = "of-these-servers-3f1c9a"
SIZES = ("sft.steps=0", "rl.steps=1", "evaluate.samples_per_prompt=0", "rollout.engine=vllm")


def test_a_run_writes_its_servers_token_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGARL_ENGINE_TOKEN", SECRET)
    folder = tmp_path / "run"
    with simulated_server(token_ms=1, secret=SECRET) as url:
        finished = train(f"output_dir={folder}", f"engine.urls=[{url}]", *SIZES)
    assert finished.returncode == 0, finished.stderr
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert {"metrics.jsonl", "run.json"} <= {path.name for path in written}
    shown = [finished.stdout.encode(), finished.stderr.encode(), *(path.read_bytes() for path in written)]
    assert not [text for text in shown if SECRET.encode() in text]


def test_a_run_with_another_token_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait as for a server that is not up yet, and does not show the token that it tried."""
    monkeypatch.setenv("MEGARL_ENGINE_TOKEN", f"not-{SECRET}")
    with simulated_server(token_ms=1, secret=SECRET) as url:
        finished = train(f"output_dir={tmp_path / 'run'}", f"engine.urls=[{url}]", *SIZES)
    assert finished.returncode == 2, finished.stderr
    assert f"megarl: error: engine.urls={url} answered 401" in finished.stderr
    assert SECRET not in finished.stdout + finished.stderr
