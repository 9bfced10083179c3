"""The selection of an update's tokens: on the whole batch, without what a correction dropped, by a named generator."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megarl.config.schema import Recipe
from megarl.loop.run import Run
from megarl.loop.selection import with_selection
from megarl.megatron.batch import TrainBatch
from megarl.objectives import build_objective
from megarl.objectives.covariance import named_generator, select_between, select_largest, token_covariance
from tests.unit.loop.parts import run_without_parts
from tests.unit.objectives.reference import ragged_mask, uniform

ROWS, WIDTH = 8, 11


def selecting_run(name: str, share: float, seed: int = 0) -> Run:
    """A run with that objective; clip_cov draws from half of the covariances or so."""
    recipe = Recipe(seed=seed)
    recipe.rl.objective.name, recipe.rl.objective.cov_share = name, share
    if name == "clip_cov":
        recipe.rl.objective.cov_low, recipe.rl.objective.cov_high = 0.0, 10.0
    return replace(run_without_parts(recipe), objective=build_objective(recipe.rl.objective))


def update_batch(seed: int = 0) -> TrainBatch:
    """Log-probs are NaN outside the mask, as the trainer leaves them."""
    mask_BT = ragged_mask(ROWS, WIDTH, seed)
    ids_BT = torch.zeros(ROWS, WIDTH, dtype=torch.int64)
    old_BT = uniform(-4, 0, (ROWS, WIDTH), seed).float().masked_fill(~mask_BT, math.nan)
    advantages_BT = uniform(-2, 2, (ROWS, WIDTH), seed + 1).float()
    lengths_B = torch.full((len(ids_BT),), ids_BT.shape[1])
    return TrainBatch(ids_BT, ids_BT, mask_BT, lengths_B, advantages_BT=advantages_BT, old_log_probs_BT=old_BT)


def selection(run: Run, batch: TrainBatch, update: int = 0) -> Tensor:
    """What is selected."""
    selected_BT = with_selection(run, batch, update)[0].selected_BT
    assert selected_BT is not None
    return selected_BT


def covariance(batch: TrainBatch, mask_BT: Tensor) -> Tensor:
    """Of the tokens of that mask."""
    assert batch.old_log_probs_BT is not None and batch.advantages_BT is not None
    return token_covariance(batch.old_log_probs_BT, batch.advantages_BT, mask_BT)


def test_kl_cov_holds_the_largest() -> None:
    batch = update_batch()
    covariance_BT = covariance(batch, batch.mask_BT)
    wanted_BT = select_largest(covariance_BT, batch.mask_BT, 0.2)
    assert torch.equal(selection(selecting_run("kl_cov", 0.2), batch), wanted_BT)


def test_clip_cov_draws_by_seed_step_and_update() -> None:
    batch = update_batch()
    run = selecting_run("clip_cov", 0.2, seed=7)
    run.state.step = 3
    named = named_generator("7/selection/3/1")
    wanted_BT = select_between(covariance(batch, batch.mask_BT), batch.mask_BT, 0.0, 10.0, 0.2, named)
    assert torch.equal(selection(run, batch, 1), wanted_BT)
    assert torch.equal(selection(run, batch, 1), wanted_BT)
    assert not torch.equal(selection(run, batch, 2), wanted_BT)
    run.state.step = 4
    assert not torch.equal(selection(run, batch, 1), wanted_BT)


def test_a_rank_and_a_micro_batch_have_their_rows_of_it() -> None:
    selected, _ = with_selection(selecting_run("kl_cov", 0.2), update_batch(), 0)
    parts = torch.cat([part.selected_BT for part in selected.parts(2) if part.selected_BT is not None])
    assert selected.selected_BT is not None and torch.equal(parts, selected.selected_BT)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_a_dropped_token_counts_in_no_mean_and_is_not_selected(name: str) -> None:
    run, batch = selecting_run(name, 1.0), update_batch()
    keep_BT = uniform(0, 1, (ROWS, WIDTH), 9) < 0.7
    assert (batch.mask_BT & ~keep_BT).any()
    part, metrics = with_selection(run, replace(batch, correction_keep_BT=keep_BT), 0)
    kept_part, kept_metrics = with_selection(run, replace(batch, mask_BT=batch.mask_BT & keep_BT), 0)
    assert part.selected_BT is not None and kept_part.selected_BT is not None
    assert torch.equal(part.selected_BT, kept_part.selected_BT)
    assert metrics == kept_metrics


def test_metrics_are_those_of_the_covariances() -> None:
    batch = update_batch()
    covariance_N = covariance(batch, batch.mask_BT)[batch.mask_BT]
    _, metrics = with_selection(selecting_run("kl_cov", 0.2), batch, 0)
    largest = covariance_N.sort(descending=True).values[: int(0.2 * len(covariance_N))]
    assert metrics == pytest.approx(
        {
            "covariance/mean": covariance_N.mean().item(),
            "covariance/max": covariance_N.max().item(),
            "covariance/selected_mean": largest.mean().item(),
        },
        rel=1e-12,
    )


def test_other_objectives_measure_and_select_nothing() -> None:
    recipe = Recipe()
    run = replace(run_without_parts(recipe), objective=build_objective(recipe.rl.objective))
    part, metrics = with_selection(run, update_batch(), 0)
    assert part.selected_BT is None
    assert metrics.keys() == {"covariance/mean", "covariance/max"}


def test_nothing_trained_is_nothing_selected_and_nothing_measured() -> None:
    batch = update_batch()
    nothing = replace(batch, mask_BT=torch.zeros_like(batch.mask_BT))
    part, metrics = with_selection(selecting_run("kl_cov", 0.2), nothing, 0)
    assert part.selected_BT is not None and not part.selected_BT.any()
    assert metrics == {}
