import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from megarl.evaluate.pass_at_k import pass_at_k_curve
from megarl.observe.metrics import MetricsWriter

KS = (1, 2, 4, 8, 16, 32)


def rl_values(step: int, noise: random.Random) -> dict[str, float]:
    """Metrics shaped like those of a short GRPO run."""
    reward = min(1.0, 0.97 - 0.69 * math.exp(-step / 8) + noise.gauss(0, 0.03))
    drift = 3e-7 * (1 + step / 30) * math.exp(noise.gauss(0, 0.15))
    kl = 0.06 * (1 - math.exp(-step / 12))
    return {
        "reward/mean": reward,
        "reward/std": math.sqrt(reward * (1 - reward)),
        "response/tokens_mean": 29 - 17 * math.exp(-step / 6),
        "policy/loss": noise.gauss(0, 0.01),
        "policy/entropy": 0.02 + 0.25 * math.exp(-step / 10) + abs(noise.gauss(0, 0.004)),
        "policy/grad_norm": 0.4,
        "policy/clip_share": 0.0,
        "kl/reference_k3": kl * math.exp(noise.gauss(0, 0.05)),
        "kl/reference_k1": kl + noise.gauss(0, 0.006),
        "drift/abs_mean": drift,
        "drift/abs_p99": 6 * drift,
        "drift/abs_max": 25 * drift * math.exp(noise.gauss(0, 0.3)),
        "lr": 5e-4 * (1 - step / 70),
        "seconds/rollout": 0.5,
        "seconds/reward": 0.01,
        "seconds/log_probs": 0.15,
        "seconds/update": 0.35,
        "seconds/sync": 0.02,
        "seconds/step": 1.03,
        "tokens_per_s/rollout": 14000 + noise.gauss(0, 500),
        "tokens_per_s/log_probs": 47000 + noise.gauss(0, 1500),
        "tokens_per_s/update": 21000 + noise.gauss(0, 900),
    }


def evaluation(seed: int, ability: float, greedy: float, mean_tokens: float) -> dict[str, Any]:
    """An entry of evaluations.json, over 64 problems whose difficulty varies."""
    noise = random.Random(seed)
    chances = [noise.betavariate(3 * ability, 3 * (1 - ability)) for _ in range(64)]
    correct = [sum(noise.random() < chance for _ in range(64)) for chance in chances]
    curve = pass_at_k_curve(64, correct, KS)
    return {
        "ks": list(curve.ks),
        "pass_at_k": list(curve.pass_at_k),
        "low": list(curve.low),
        "high": list(curve.high),
        "greedy": greedy,
        "mean_tokens": mean_tokens,
        "problems": 64,
        "samples": 64,
    }


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run: 4 SFT steps, 60 RL steps, both evaluations."""
    folder = tmp_path / "demo-seed1"
    noise = random.Random(1)
    with MetricsWriter(folder, tensorboard=False) as metrics:
        for step in range(1, 5):
            metrics.write(
                "sft",
                step,
                {"sft/loss": 2 / step, "sft/grad_norm": 1, "seconds/step": 0.1, "tokens_per_s/update": 9e3},
            )
        for step in range(1, 61):
            metrics.write("rl", step, rl_values(step, noise))
    pair = {"before": evaluation(1, 0.28, 0.047, 12.1), "after": evaluation(2, 0.91, 1.0, 29.0)}
    (folder / "evaluations.json").write_text(json.dumps(pair))
    return folder
