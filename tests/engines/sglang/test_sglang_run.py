"""A run with an SGLang server that is killed in the middle."""

import os
from pathlib import Path

import psutil
import pytest

from tests.engines.sglang.servers import PYTHON, STAND_INS, TOLERANCE
from tests.runs import metrics, reached, started, wait_until

STEPS = 6


def test_a_run_outlives_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_INS), os.environ.get("PYTHONPATH", "")]))
    overrides = (
        "rollout.engine=sglang",
        f"engine.python={PYTHON}",
        "engine.kv_cache_gib=0.05",
        "sync.bucket_mib=1",
        f"rl.steps={STEPS}",
        f"output_dir={tmp_path}",
    )
    with started(*overrides) as run:
        wait_until(lambda: reached(tmp_path, "rl", 2), run, timeout_s=300)
        (server,) = [
            child for child in psutil.Process(run.pid).children() if "megarl.rollout.sglang.serve" in child.cmdline()
        ]
        for process in [*server.children(recursive=True), server]:
            process.kill()
        output, _ = run.communicate(timeout=300)
        assert run.returncode == 0, output
    steps = [line for line in metrics(tmp_path) if line["phase"] == "rl"]
    assert [line["step"] for line in steps] == list(range(steps[0]["step"], steps[0]["step"] + STEPS))
    # the trainer's log-probs of every token against the engine's, under the weights of each step
    assert max(line["drift/abs_max"] for line in steps) < TOLERANCE
    assert "is lost and is started again" in output
