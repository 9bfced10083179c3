"""The whole policy loss of a recipe: objective, correction, KL term, entropy bonus, from the inside out."""

from dataclasses import replace

from megarl.config.objective import CorrectionConfig
from megarl.config.refusal import refusal
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
    Rule,
    Veto,
)
from megarl.objectives import EntropyBonus, KLPenalty, Normalisation, Objective, build_objective


def build_policy_loss(recipe: Recipe, kl_coefficient: float, clip_high: float | None = None) -> Objective:
    """What an update minimises, per token.

    Args:
        recipe: the recipe.
        kl_coefficient: the coefficient as it stands; the recipe's own at the start.
        clip_high: the objective's upper clip as it stands; None for the recipe's own.

    Raises:
        RecipeError: the objective is not registered, its dotted path gives none, or it has a ratio of its own to what
            the recipe weighs its tokens by.
    """
    rl = recipe.rl
    bypass = rl.correction.mode == "bypass"
    loss = build_objective(rl.objective if clip_high is None else replace(rl.objective, clip_high=clip_high))
    if rl.correction.mode != "none":
        if bypass and rl.correction.weighting != "none" and "old_log_probs_BT" in loss.needs:
            reason = "weighs twice: in rl.correction.mode=bypass the objective's own ratio is policy / engine"
            raise refusal("rl.correction.weighting", rl.correction.weighting, reason, "set weighting=none")
        opsm = None if rl.correction.opsm is None else OPSM(rl.correction.opsm)
        loss = CorrectedObjective(loss, build_correction(rl.correction), bypass, opsm)
    in_loss = kl_coefficient if rl.kl.placement == "loss" else 0.0
    loss = KLPenalty(loss, in_loss, rl.kl.estimator, rl.kl.importance_weighted, rl.kl.cap, bypass)
    return EntropyBonus(loss, rl.entropy.coefficient)


def build_correction(config: CorrectionConfig) -> Correction:
    """The rejections and weights that the recipe asks for."""
    rules: list[Rule] = []
    if config.reject_token is not None:
        rules.append(RejectTokens(*config.reject_token))
    if config.reject_sequence is not None:
        rules.append(RejectSequences(*config.reject_sequence))
    if config.reject_geometric is not None:
        rules.append(RejectGeometric(*config.reject_geometric))
    if config.reject_k3 is not None:
        rules.append(RejectK3(config.reject_k3))
    if config.veto is not None:
        rules.append(Veto(config.veto))
    weighting = {"none": None, "tis": TIS(config.cap), "icepop": IcePop(config.low, config.high)}[config.weighting]
    return Correction(rules, weighting)


def build_normalisation(recipe: Recipe) -> Normalisation:
    """How token losses become one number."""
    objective = recipe.rl.objective
    if objective.normalisation != "seq_mean_token_sum_norm":
        return Normalisation(objective.normalisation)
    return Normalisation(objective.normalisation, objective.normalisation_constant or recipe.rollout.max_new_tokens)
