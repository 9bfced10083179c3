"""Advantage estimators, by name: a step's rewards in, one advantage a token out."""

from collections.abc import Mapping

from megarl.objectives.advantages.dr_grpo import dr_grpo
from megarl.objectives.advantages.gae import GAE, gae
from megarl.objectives.advantages.grpo import grpo
from megarl.objectives.advantages.inputs import Estimator, Rewarded
from megarl.objectives.advantages.max_rl import max_rl
from megarl.objectives.advantages.reinforce_pp import reinforce_pp, reinforce_pp_baseline
from megarl.objectives.advantages.remax import remax
from megarl.objectives.advantages.rloo import rloo

ADVANTAGES: Mapping[str, Estimator] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "remax": remax,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "max_rl": max_rl,
}

__all__ = ["ADVANTAGES", "GAE", "Estimator", "Rewarded", "gae"]
