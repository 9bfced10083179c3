"""Advantages of a whole step: what is hidden is not read, and what is rejected is as if it had not been drawn."""

import math
from dataclasses import replace

import pytest
import torch

from megarl.config.names import KNOWN_ADVANTAGES
from megarl.config.objective import CorrectionConfig, KLConfig
from megarl.config.schema import Recipe
from megarl.objectives.kl import ESTIMATORS
from tests.unit.loop.steps import GROUPS, advantages_of, drifted, step, without

RULES: dict[str, CorrectionConfig] = {
    "token": CorrectionConfig(mode="decoupled", reject_token=[0.5, 2.0]),
    "sequence": CorrectionConfig(mode="decoupled", reject_sequence=[0.5, 2.0]),
    "geometric": CorrectionConfig(mode="decoupled", reject_geometric=[0.9, 1.1]),
    "k3": CorrectionConfig(mode="decoupled", reject_k3=0.01),
    "veto": CorrectionConfig(mode="decoupled", veto=1e-4),
    "all, weighted": CorrectionConfig(
        mode="decoupled", weighting="icepop", reject_token=[0.5, 2.0], reject_k3=0.01, veto=1e-4
    ),
    "bypass": CorrectionConfig(mode="bypass", reject_geometric=[0.9, 1.1]),
}
GONE = 1


def recipe_with(advantage: str, estimator: str | None = None, correction: CorrectionConfig | None = None) -> Recipe:
    """A KL in the reward where an estimator is named."""
    recipe = Recipe()
    recipe.rl.advantage, recipe.rl.gamma, recipe.rl.critic.gae_lambda = advantage, 0.9, 0.8
    if estimator is None:
        recipe.rl.kl = KLConfig(coefficient=0.0)
    else:
        recipe.rl.kl = KLConfig(coefficient=0.1, estimator=estimator, placement="reward")
    if correction is not None:
        recipe.rl.correction = correction
    return recipe


def estimators(advantage: str) -> list[str | None]:
    """max_rl takes no KL in the reward."""
    return [None] if advantage == "max_rl" else [None, *ESTIMATORS]


ADVANTAGES = [(advantage, estimator) for advantage in KNOWN_ADVANTAGES for estimator in estimators(advantage)]


@pytest.mark.parametrize(("advantage", "estimator"), ADVANTAGES)
@pytest.mark.parametrize("rule", [None, "all, weighted", "bypass"])
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_hidden_log_probs_are_not_read(advantage: str, estimator: str | None, rule: str | None, junk: float) -> None:
    recipe = recipe_with(advantage, estimator, RULES[rule] if rule else None)
    batch, rollouts = step()
    batch = drifted(GONE, batch)
    names = ("old_log_probs_BT", "rollout_log_probs_BT", "reference_log_probs_BT")
    hidden = {name: getattr(batch, name).masked_fill(~batch.mask_BT, junk) for name in names}
    clean, other = (advantages_of(recipe, each, rollouts) for each in (batch, replace(batch, **hidden)))
    for name in set(vars(clean)) - set(names):
        one, two = getattr(clean, name), getattr(other, name)
        assert one is two or torch.equal(one, two), name
    assert clean.advantages_BT is not None and clean.advantages_BT.isfinite().all()
    assert clean.advantages_BT.any()


@pytest.mark.parametrize(("advantage", "estimator"), ADVANTAGES)
@pytest.mark.parametrize("rule", [*RULES, "overlong"])
def test_a_rejected_response_is_as_if_it_had_not_been_drawn(advantage: str, estimator: str | None, rule: str) -> None:
    """For its siblings' advantages, whatever it was worth and cost; it has none itself."""
    recipe = recipe_with(advantage, estimator, RULES.get(rule))
    recipe.rl.overlong.filter = rule == "overlong"
    batch, rollouts = step()
    gone = GONE
    if rule == "overlong":
        # the truncated ones are rejected too in what is compared with
        gone = 3
        assert rollouts.completions[gone].finish_reason == "length"
    else:
        batch = drifted(gone, batch)
    got = advantages_of(recipe, batch, rollouts).advantages_BT
    rollouts.rewards[gone] = 1e6
    assert batch.reference_log_probs_BT is not None
    dear = batch.reference_log_probs_BT.clone()
    dear[gone] -= 3
    again = advantages_of(recipe, replace(batch, reference_log_probs_BT=dear), rollouts).advantages_BT
    never = advantages_of(recipe, *without(gone, batch, rollouts)).advantages_BT
    assert got is not None and again is not None and never is not None
    left = [row for row in range(len(GROUPS)) if row != gone]
    assert torch.equal(got, again)
    assert torch.equal(got[left], never)
    assert not got[gone].any() and never.any()


@pytest.mark.parametrize("advantage", KNOWN_ADVANTAGES)
def test_without_a_rejection_the_response_would_count(advantage: str) -> None:
    """So that the test above can fail: its reward moves a sibling's advantage, by all but a greedy baseline."""
    batch, rollouts = step()
    before = advantages_of(recipe_with(advantage), batch, rollouts).advantages_BT
    rollouts.rewards[GONE] += 1.0
    after = advantages_of(recipe_with(advantage), batch, rollouts).advantages_BT
    assert before is not None and after is not None
    assert torch.equal(before[0], after[0]) == (advantage == "remax")


@pytest.mark.parametrize("rule", [name for name in RULES if name != "bypass"])
def test_denominators_lose_a_rejected_response_where_the_recipe_says_so(rule: str) -> None:
    batch, rollouts = step()
    batch = drifted(GONE, batch)
    everything, kept = (
        advantages_of(recipe_with("grpo", None, replace(RULES[rule], normalise=normalise)), batch, rollouts)
        for normalise in ("all", "kept")
    )
    assert torch.equal(everything.mask_BT, batch.mask_BT)
    expected = batch.mask_BT.clone()
    expected[GONE] = False
    assert torch.equal(kept.mask_BT, expected)
    assert everything.advantages_BT is not None and kept.advantages_BT is not None
    assert torch.equal(everything.advantages_BT, kept.advantages_BT)


def test_truncated_responses_leave_the_denominators() -> None:
    recipe = recipe_with("grpo")
    recipe.rl.overlong.filter = True
    batch, rollouts = step()
    whole = torch.tensor([completion.finish_reason == "stop" for completion in rollouts.completions])
    assert 0 < int(whole.sum()) < len(whole)
    assert torch.equal(advantages_of(recipe, batch, rollouts).mask_BT, batch.mask_BT & whole[:, None])
