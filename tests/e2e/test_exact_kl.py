"""The exact KL, in the loss and in the reward, through whole runs."""

from pathlib import Path

import pytest

from tests.forked_runs import train
from tests.runs import metrics

pytestmark = pytest.mark.parallel


@pytest.mark.parametrize("layout", [[], ["parallel.world_size=2", "parallel.pipeline=2", "rl.micro_batch_tokens=128"]])
@pytest.mark.parametrize("placement", ["loss", "reward"])
def test_run(placement: str, layout: list[str], tmp_path: Path) -> None:
    """The KL is nothing at first, and then the mean that its sampled estimate scatters around."""
    result = train(
        "sft.steps=0", "rl.steps=4", "rl.kl.estimator=full", "rl.kl.coefficient=0.1", f"rl.kl.placement={placement}",
        "rl.optimizer.lr=1e-3", "rl.advantage=rloo", f"output_dir={tmp_path}", *layout,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    steps = [line for line in metrics(tmp_path) if line["phase"] == "rl"]
    assert len(steps) == 4 and steps[0]["kl/reference_k3"] < 1e-9
    assert steps[3]["kl/reference_k3"] > 1e-5, "the policy must have moved"
    if placement == "loss":
        assert steps[0]["kl/reference_full"] < 1e-9
        assert 0.3 < steps[3]["kl/reference_full"] / steps[3]["kl/reference_k3"] < 3
