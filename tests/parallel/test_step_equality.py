"""The first GRPO step is the same whatever the layout, and trainer and engine agree."""

from typing import Any

import pytest
import torch

from tests.parallel.world import run_world

pytestmark = pytest.mark.parallel

# the bound; fp32 sums in another order differ by about 1e-6
RELATIVE = 1e-4
COMMON = [
    "sft.steps=0",
    "model.init_from=tests/data/base",
    "rl.kl.coefficient=0.01",
    "rl.micro_batch_size=32",
]
LAYOUTS = {
    "tp2": ["parallel.world_size=2", "parallel.tensor=2"],
    "pp2": ["parallel.world_size=2", "parallel.pipeline=2"],
    "dp2": ["parallel.world_size=2"],
    "tp2 x pp2": ["parallel.world_size=4", "parallel.tensor=2", "parallel.pipeline=2"],
    "dp2 x tp2": ["parallel.world_size=4", "parallel.tensor=2"],
    "dp2 x pp2, packed": ["parallel.world_size=4", "parallel.pipeline=2", "rl.micro_batch_tokens=500"],
    "cp2": ["parallel.world_size=2", "parallel.context=2"],
    "tp2, sequence x cp2, packed": [
        "parallel.world_size=4",
        "parallel.tensor=2",
        "parallel.sequence=true",
        "parallel.context=2",
        "rl.micro_batch_tokens=300",
    ],
}


def first_step(nprocs: int, layout: list[str]) -> dict[str, Any]:
    """What rank 0 saw of the first step."""
    overrides = [*COMMON, *layout]
    results = run_world("tests.parallel.step_worker:first_step", nprocs, {"overrides": overrides}, timeout_s=240)
    for other in results[1:]:
        assert torch.equal(results[0]["before"], other["before"]), "every rank must see the same log-probs"
    return results[0]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """The step at world size 1."""
    return first_step(1, [])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_first_step_is_the_same_under(layout: str, alone: dict[str, Any]) -> None:
    """Policy loss, gradient norm and token log-probs, before and after the update."""
    split = first_step(4 if "x" in layout else 2, LAYOUTS[layout])
    assert split["tokens"] == alone["tokens"]
    assert alone["metrics"]["reward/std"] > 0, "without rewards that differ there is no policy gradient"
    for name in ("policy/grad_norm", "policy/loss", "policy/entropy", "kl/reference_k3"):
        assert split["metrics"][name] == pytest.approx(alone["metrics"][name], rel=RELATIVE, abs=1e-7), name
    for moment in ("before", "after"):
        torch.testing.assert_close(split[moment], alone[moment], rtol=RELATIVE, atol=1e-6)


def test_trainer_and_engine_agree(alone: dict[str, Any]) -> None:
    """Megatron's log-probs and the embedded engine's, on the tokens that the engine sampled."""
    engine = torch.tensor([value for row in alone["engine_log_probs"] for value in row])
    torch.testing.assert_close(alone["before"], engine, rtol=RELATIVE, atol=1e-5)
    assert alone["metrics"]["drift/abs_max"] < RELATIVE
    assert alone["metrics"]["drift/tokens_without_log_prob"] == 0
