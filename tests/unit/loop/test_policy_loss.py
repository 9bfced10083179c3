"""The policy loss that a recipe asks for, from the inside out."""

import math

import pytest
import torch

from megarl.config.errors import RecipeError
from megarl.config.objective import CorrectionConfig
from megarl.config.schema import Recipe
from megarl.drift.corrections import (
    OPSM,
    TIS,
    CorrectedObjective,
    Correction,
    IcePop,
    RejectGeometric,
    RejectK3,
    RejectSequences,
    RejectTokens,
    Veto,
)
from megarl.loop.policy_loss import build_correction, build_normalisation, build_policy_loss
from megarl.objectives import GRPO, GSPO, EntropyBonus, KLPenalty, Normalisation, TokenBatch


def test_the_default_is_grpo_with_a_kl_term() -> None:
    assert build_policy_loss(Recipe(), 0.001) == EntropyBonus(KLPenalty(GRPO(), 0.001), 0.0)


def test_every_part_takes_its_settings() -> None:
    recipe = Recipe()
    recipe.rl.objective.name = "gspo"
    recipe.rl.objective.clip_low = 0.01
    recipe.rl.kl.estimator, recipe.rl.kl.importance_weighted, recipe.rl.kl.cap = "k2", True, 5.0
    recipe.rl.entropy.coefficient = 0.25
    recipe.rl.correction = CorrectionConfig(mode="decoupled", weighting="tis", cap=3.0, opsm=0.1)
    corrected = CorrectedObjective(GSPO(clip_low=0.01), Correction([], TIS(3.0)), False, OPSM(0.1))
    # the coefficient is the one given, which may have been steered, and not the recipe's
    assert build_policy_loss(recipe, 0.5) == EntropyBonus(KLPenalty(corrected, 0.5, "k2", True, 5.0), 0.25)


def test_a_raised_clip_takes_the_place_of_the_recipes() -> None:
    recipe = Recipe()
    recipe.rl.objective.clip_low, recipe.rl.objective.clip_high = 0.1, 0.2
    assert build_policy_loss(recipe, 0.0) == EntropyBonus(KLPenalty(GRPO(0.1, 0.2), 0.0), 0.0)
    assert build_policy_loss(recipe, 0.0, 0.3) == EntropyBonus(KLPenalty(GRPO(0.1, 0.3), 0.0), 0.0)
    assert recipe.rl.objective.clip_high == 0.2


def test_bypass_does_not_weigh_twice() -> None:
    recipe = Recipe()
    recipe.rl.correction = CorrectionConfig(mode="bypass", weighting="tis")
    with pytest.raises(RecipeError, match="weighs twice"):
        build_policy_loss(recipe, 0.0)
    recipe.rl.objective.name = "megarl.objectives.PPO"
    with pytest.raises(RecipeError, match="weighs twice"):
        build_policy_loss(recipe, 0.0)
    for without_ratio in ("reinforce", "megarl.objectives.Reinforce"):
        recipe.rl.objective.name = without_ratio
        assert "old_log_probs_BT" not in build_policy_loss(recipe, 0.0).needs


def test_a_kl_in_the_reward_is_not_in_the_loss_too() -> None:
    recipe = Recipe()
    recipe.rl.kl.placement = "reward"
    loss = build_policy_loss(recipe, 0.5)
    assert loss == EntropyBonus(KLPenalty(GRPO(), 0.0), 0.0)
    assert "reference_log_probs_BT" not in loss.needs


@pytest.mark.parametrize("mode", ["decoupled", "bypass"])
def test_the_mode_decides_what_is_needed(mode: str) -> None:
    recipe = Recipe()
    recipe.rl.correction = CorrectionConfig(mode=mode, veto=1e-4)
    needs = build_policy_loss(recipe, 0.0).needs
    assert "rollout_log_probs_BT" in needs
    assert ("old_log_probs_BT" in needs) == (mode == "decoupled")


@pytest.mark.parametrize(("mode", "sampler"), [("none", "old"), ("decoupled", "old"), ("bypass", "rollout")])
def test_a_weighted_kl_takes_the_ratio_of_the_objective(mode: str, sampler: str) -> None:
    recipe = Recipe()
    recipe.rl.kl.importance_weighted = True
    if mode != "none":
        recipe.rl.correction = CorrectionConfig(mode=mode, veto=1e-4)
    loss = build_policy_loss(recipe, 0.5)
    assert isinstance(loss, EntropyBonus) and isinstance(loss.inner, KLPenalty)
    assert loss.inner.bypass == (mode == "bypass")
    assert f"{sampler}_log_probs_BT" in loss.needs


RULES = {
    "reject_token": ([0.9, 1.1], RejectTokens(0.9, 1.1)),
    "reject_sequence": ([0.5, 2.0], RejectSequences(0.5, 2.0)),
    "reject_geometric": ([0.99, 1.01], RejectGeometric(0.99, 1.01)),
    "reject_k3": (0.02, RejectK3(0.02)),
    "veto": (1e-3, Veto(1e-3)),
}


@pytest.mark.parametrize("key", RULES)
def test_a_rule_is_built_from_its_key(key: str) -> None:
    value, rule = RULES[key]
    assert build_correction(CorrectionConfig(mode="decoupled", **{key: value})) == Correction([rule], None)


def test_all_rules_go_together() -> None:
    settings = {key: value for key, (value, _) in RULES.items()}
    correction = build_correction(CorrectionConfig(mode="decoupled", weighting="icepop", low=0.4, high=4.0, **settings))
    assert correction == Correction([rule for _, rule in RULES.values()], IcePop(0.4, 4.0))


def test_no_rule_keeps_every_usable_token() -> None:
    correction = build_correction(CorrectionConfig())
    trainer_BT, rollout_BT = torch.tensor([[-1.0, -2.0, -3.0]]), torch.tensor([[-5.0, float("nan"), -3.0]])
    corrected = correction(trainer_BT, rollout_BT, torch.tensor([[True, True, False]]))
    assert corrected.keep_BT.tolist() == [[True, False, False]]
    assert corrected.weights_BT.tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum"])
def test_a_normalisation_without_a_constant(mode: str) -> None:
    recipe = Recipe()
    recipe.rl.objective.normalisation = mode
    assert build_normalisation(recipe) == Normalisation(mode)


@pytest.mark.parametrize(("constant", "expected"), [(None, 64), (100, 100)])
def test_the_constant_is_the_longest_response_unless_given(constant: int | None, expected: int) -> None:
    recipe = Recipe()
    recipe.rl.objective.normalisation = "seq_mean_token_sum_norm"
    recipe.rl.objective.normalisation_constant = constant
    assert recipe.rollout.max_new_tokens == 64
    assert build_normalisation(recipe) == Normalisation("seq_mean_token_sum_norm", expected)


def test_the_whole_loss_on_one_token() -> None:
    """max(-A r, ..) under TIS, plus beta k3, less the entropy bonus, by hand."""
    recipe = Recipe()
    recipe.rl.correction = CorrectionConfig(mode="decoupled", weighting="tis", cap=2.0)
    recipe.rl.entropy.coefficient = 0.1
    log_probs_BT = torch.tensor([[-1.0]], requires_grad=True)
    output = build_policy_loss(recipe, 0.5)(
        TokenBatch(
            log_probs_BT,
            torch.tensor([[True]]),
            torch.tensor([[0.7]]),
            advantages_BT=torch.tensor([[2.0]]),
            old_log_probs_BT=torch.tensor([[-1.1]]),
            rollout_log_probs_BT=torch.tensor([[-1.4]]),
            reference_log_probs_BT=torch.tensor([[-0.8]]),
        )
    )
    ratio, weight, x = math.exp(0.1), math.exp(0.3), -0.2
    k3 = math.exp(-x) + x - 1
    assert output.loss_BT.item() == pytest.approx(-2.0 * ratio * weight + 0.5 * k3 - 0.1 * 0.7, rel=1e-6)
    output.loss_BT.sum().backward()
    assert log_probs_BT.grad is not None
    coefficient = 1 - math.exp(-x)
    assert log_probs_BT.grad.item() == pytest.approx(-2.0 * ratio * weight + 0.5 * coefficient, rel=1e-6)
