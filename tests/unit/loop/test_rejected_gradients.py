"""What a rejected response does to the gradient of the others: nothing but the denominator that the recipe names."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megarl.config.names import KNOWN_OBJECTIVES
from megarl.config.objective import CorrectionConfig, KLConfig
from megarl.config.schema import Recipe
from megarl.loop.policy_loss import build_normalisation, build_policy_loss
from megarl.megatron.batch import TrainBatch
from megarl.objectives import TokenBatch
from megarl.objectives.normalisation import MODES, weighted_sum
from tests.unit.loop.steps import GROUPS, advantages_of, drifted, step, without
from tests.unit.objectives.reference import uniform

GONE = 1
LEFT = [row for row in range(len(GROUPS)) if row != GONE]


def recipe_with(objective: str, mode: str, correction: CorrectionConfig) -> Recipe:
    recipe = Recipe()
    recipe.rl.objective.name, recipe.rl.objective.normalisation = objective, mode
    recipe.rl.kl, recipe.rl.correction = KLConfig(coefficient=0.0), correction
    return recipe


def gradient(recipe: Recipe, batch: TrainBatch, moved_BT: Tensor) -> Tensor:
    """Of the normalised loss by the log-probs of a policy that has moved from the old one, nats a token."""
    batch = batch.with_totals()
    assert batch.total_tokens is not None and batch.total_responses is not None and batch.old_log_probs_BT is not None
    log_probs_BT = (batch.old_log_probs_BT + moved_BT).requires_grad_()
    fields = vars(TokenBatch(log_probs_BT, batch.mask_BT, log_probs_BT.detach())).keys()
    given = {name: getattr(batch, name) for name in fields if hasattr(batch, name)}
    # every other position; that a rejected token enters no selection is tested where selections are formed
    given["selected_BT"] = batch.mask_BT & (torch.arange(batch.mask_BT.shape[1]) % 2 == 0)
    tokens = TokenBatch(**{**given, "log_probs_BT": log_probs_BT, "entropy_BT": log_probs_BT.detach()})
    loss_BT = build_policy_loss(recipe, 0.0)(tokens).loss_BT
    weights_BT = build_normalisation(recipe).weights(batch.mask_BT, batch.total_tokens, batch.total_responses)
    loss = weighted_sum(loss_BT, weights_BT) / batch.total_tokens
    return torch.autograd.grad(loss, log_probs_BT)[0]


def gradients(recipe: Recipe) -> tuple[Tensor, Tensor, Tensor, TrainBatch]:
    """With a rejected response, with another one rejected in its place, and as if it had not been drawn."""
    batch, rollouts = step()
    batch = drifted(GONE, batch)
    moved_BT = uniform(-0.05, 0.05, batch.mask_BT.shape, 5).float()
    got = gradient(recipe, advantages_of(recipe, batch, rollouts), moved_BT)
    never = gradient(recipe, advantages_of(recipe, *without(GONE, batch, rollouts)), moved_BT[LEFT])
    rollouts.rewards[GONE] = 1e3
    assert batch.old_log_probs_BT is not None
    old, elsewhere = batch.old_log_probs_BT.clone(), moved_BT.clone()
    old[GONE] -= 0.5
    elsewhere[GONE] += 0.25
    other = gradient(recipe, advantages_of(recipe, replace(batch, old_log_probs_BT=old), rollouts), elsewhere)
    return got, other, never, batch


CORRECTIONS = {
    "decoupled, all": CorrectionConfig(mode="decoupled", veto=1e-4),
    "decoupled, kept": CorrectionConfig(mode="decoupled", reject_sequence=[0.5, 2.0], normalise="kept"),
    "decoupled, weighted": CorrectionConfig(mode="decoupled", weighting="tis", reject_k3=0.05),
    "bypass": CorrectionConfig(mode="bypass", reject_sequence=[0.1, 10.0]),
}
COMBINATIONS = [
    (objective, correction)
    for objective in KNOWN_OBJECTIVES
    for correction in CORRECTIONS
    if not (correction == "bypass" and objective == "decoupled_ppo")
    and not (correction == "decoupled, weighted" and objective in ("decoupled_ppo", "dppo_tv"))
]


@pytest.mark.parametrize(("objective", "correction"), COMBINATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_a_rejected_response_only_changes_the_denominator(objective: str, correction: str, mode: str) -> None:
    recipe = recipe_with(objective, mode, CORRECTIONS[correction])
    got, other, never, batch = gradients(recipe)
    assert never.any() and got.isfinite().all()
    assert not got[GONE].any()
    assert torch.equal(got, other)
    if recipe.rl.correction.normalise == "kept":
        assert torch.equal(got[LEFT], never)
        return
    counts = batch.mask_BT if mode == "token_mean" else batch.mask_BT.any(dim=1)
    share = int(counts[LEFT].sum()) / int(counts.sum())
    # each gradient is a product of at most five fp32 factors, rounded to 6e-8 each, on either side
    torch.testing.assert_close(got[LEFT], never * share, rtol=6e-7, atol=0.0)
