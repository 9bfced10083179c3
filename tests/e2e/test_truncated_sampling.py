"""Top-p and top-k through whole runs: the trainer's log-probs stay the engine's."""

from pathlib import Path

import pytest

from tests.forked_runs import train
from tests.runs import metrics, undocumented

pytestmark = pytest.mark.parallel

RUNS = {
    "top-p": ["rollout.top_p=0.9"],
    "both, on two tensor ranks": [
        "rollout.top_p=0.95",
        "rollout.top_k=4",
        "parallel.world_size=2",
        "parallel.tensor=2",
    ],
    "whole responses, packed": ["rollout.top_p=0.9", "rl.objective.name=gspo", "rl.micro_batch_tokens=128"],
}


@pytest.mark.parametrize("name", RUNS)
def test_run(name: str, tmp_path: Path) -> None:
    """Four steps from a policy that is spread out; each has fp32's drift, and the policy moves."""
    result = train(
        "sft.steps=0", "rl.steps=4", "rl.optimizer.lr=1e-3", "rollout.temperature=1.3", f"output_dir={tmp_path}",
        *RUNS[name],
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    steps = [line for line in metrics(tmp_path) if line["phase"] == "rl"]
    assert len(steps) == 4
    assert steps[0]["kl/reference_k3"] < 1e-9 and steps[3]["kl/reference_k3"] > 1e-6
    for step in steps:
        assert step["drift/abs_max"] < 1e-4 and step["drift/outside_support_share"] == 0
        assert step["drift/tokens_without_log_prob"] == 0
        assert not undocumented(set(step) - {"phase", "step"})
