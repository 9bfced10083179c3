"""A run whose trainer and engine give the same bits: no drift at all, in every layout that is allowed."""

from pathlib import Path
from typing import Any

import pytest

from tests.forked_runs import finished
from tests.runs import RECIPE, metrics

SIZES = [
    "model.init_from=tests/data/base",
    "sft.steps=0",
    "rl.steps=2",
    "rl.optimizer.warmup_steps=0",
    "rl.prompts_per_step=4",
    "rl.samples_per_prompt=4",
    "rl.micro_batch_size=16",
    "rollout.max_new_tokens=24",
    "evaluate.samples_per_prompt=0",
]
INVARIANT = "precision.batch_invariant=true"


def lines_of(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    run = finished([RECIPE, *SIZES, *arguments, f"output_dir={folder}"], timeout_s=300)
    assert run.returncode == 0, run.stderr
    return metrics(folder)


@pytest.fixture(scope="module")
def of_one_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The metrics of a run in each precision."""
    folder = tmp_path_factory.mktemp("one")
    return {dtype: lines_of(folder / dtype, INVARIANT, f"precision.dtype={dtype}") for dtype in ("fp32", "bf16")}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_run_has_no_drift(of_one_rank: dict[str, list[dict[str, Any]]], dtype: str) -> None:
    assert len(of_one_rank[dtype]) == 2
    for line in of_one_rank[dtype]:
        assert line["drift/tokens"] > 100 and line["drift/tokens_without_log_prob"] == 0
        for name in ("abs_max", "k1", "k3", "chi2", "sequence_sum_abs_max"):
            assert line[f"drift/{name}"] == 0, name
        assert line["drift/ess_share"] == 1
        # the first of the step's updates, whose policy is the one that was scored
        assert line["policy/ratio_mean"] == 1


def test_without_the_key_a_run_has_drift(tmp_path: Path) -> None:
    assert all(line["drift/abs_max"] > 0 for line in lines_of(tmp_path / "run", "precision.dtype=bf16"))


@pytest.mark.parametrize(
    "layout",
    [
        ["parallel.tensor=2"],
        ["parallel.tensor=2", "parallel.sequence=true", "precision.dtype=bf16"],
        ["parallel.context=2", "rl.micro_batch_tokens=256"],
        ["parallel.pipeline=2", "parallel.recompute=full"],
        [],
    ],
    ids=["tensor", "sequence, bf16", "context, packed", "pipeline, recomputed", "data"],
)
def test_two_ranks_have_no_drift_either(
    tmp_path: Path, layout: list[str], of_one_rank: dict[str, list[dict[str, Any]]]
) -> None:
    """Nor do they draw other tokens in the first step, whose gradient is that of one rank up to rounding.

    In bf16 each product of the gradient is rounded by up to 2^-8; the norm is held to five of them.
    """
    two = lines_of(tmp_path / "two", INVARIANT, "parallel.world_size=2", "rl.micro_batch_size=8", *layout)
    assert all(line["drift/abs_max"] == 0 for line in two)
    coarse = "precision.dtype=bf16" in layout
    one = of_one_rank["bf16" if coarse else "fp32"]
    for name in ("drift/tokens", "reward/mean", "policy/entropy"):
        assert two[0][name] == pytest.approx(one[0][name], rel=1e-5), name
    assert two[0]["policy/grad_norm"] == pytest.approx(one[0]["policy/grad_norm"], rel=5 * 2**-8 if coarse else 1e-4)
