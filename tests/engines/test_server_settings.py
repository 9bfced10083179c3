"""A server of the user's that works by other settings than the recipe needs is refused in one sentence."""

from pathlib import Path

import pytest

from tests.engines.simulated import simulated_server
from tests.runs import train

pytestmark = pytest.mark.parallel

SIZES = ("sft.steps=0", "rl.steps=1", "evaluate.samples_per_prompt=0", "rollout.engine=vllm")


@pytest.mark.parametrize(
    ("settings", "overrides", "complaint"),
    [
        # vLLM's default, before temperature and truncation: drift that no weight explains
        (
            {"log_probs": "raw_logprobs"},
            (),
            "runs with logprobs_mode=raw_logprobs, and the recipe needs processed_logprobs",
        ),
        ({}, ("engine.dtype=bf16",), "runs with dtype=torch.float32, and the recipe needs bfloat16"),
        (
            {},
            ("model.max_position_embeddings=64",),
            "runs with max_model_len=128, and the recipe needs 64",
        ),
    ],
    ids=["raw log-probs", "another precision", "another context"],
)
def test_it_is_refused(settings: dict[str, str], overrides: tuple[str, ...], complaint: str, tmp_path: Path) -> None:
    with simulated_server(token_ms=1, **settings) as url:
        refused = train(f"output_dir={tmp_path / 'run'}", f"engine.urls=[{url}]", *SIZES, *overrides)
    assert refused.returncode == 2, refused.stderr
    told = [line for line in refused.stderr.splitlines() if line.startswith("megarl: error: ")]
    fix = "start it with this recipe's settings, as docs/engines.md says."
    assert told == [f"megarl: error: engine.urls={url} {complaint}; {fix}"]
