"""A whole run of a policy with experts on two ranks that share them, with the engine's routing replayed."""

from pathlib import Path

import pytest

from tests.forked_runs import train
from tests.runs import metrics, undocumented

pytestmark = pytest.mark.parallel


def test_run(tmp_path: Path) -> None:
    result = train(
        "model.init_from=null", "model.family=qwen3_moe", "model.moe={num_experts: 4, aux_loss_coefficient: 0.01}",
        "parallel={world_size: 2, expert: 2}", "rl.routing_replay=experts", "rl.steps=2", "rl.advantage=gae",
        "rl.micro_batch_tokens=128", f"output_dir={tmp_path}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = metrics(tmp_path)
    for line in lines:
        assert 0 <= line["moe/load_min"] <= 1 <= line["moe/load_max"] and line["moe/aux_loss"] > 0
        assert undocumented(line.keys() - {"phase", "step"}) == []
    steps = [line for line in lines if line["phase"] == "rl"]
    assert len(steps) == 2
    for line in steps:
        # two fp32 implementations part over a tie in the gates at most
        assert line["drift/routing_agreement"] > 0.99 and line["drift/routing_overlap"] > 0.99
        assert line["drift/abs_mean"] < 1e-5
        assert line["critic/moe_aux_loss"] > 0
