"""Objectives, advantages and KL estimators: tensors in, per-token terms and sums out.

Importing this package needs torch alone: nothing here knows of processes, Megatron or files.
"""

from megarl.objectives.advantages import ADVANTAGES, GAE, Rewarded, gae
from megarl.objectives.batch import Objective, ObjectiveOutput, Selects, TokenBatch
from megarl.objectives.cispo import CISPO
from megarl.objectives.clip_cov import ClipCov
from megarl.objectives.dapo import DAPO
from megarl.objectives.decoupled_ppo import DecoupledPPO
from megarl.objectives.dppo_tv import DPPOTV
from megarl.objectives.dr_grpo import DrGRPO
from megarl.objectives.entropy import EntropyBonus
from megarl.objectives.grpo import GRPO
from megarl.objectives.gspo import GSPO
from megarl.objectives.k2_5 import K25
from megarl.objectives.kl_cov import KLCov
from megarl.objectives.kl_penalty import KLPenalty
from megarl.objectives.normalisation import Normalisation
from megarl.objectives.ppo import PPO
from megarl.objectives.registry import OBJECTIVES, build_objective
from megarl.objectives.reinforce import Reinforce
from megarl.objectives.sft import SFT

__all__ = [
    "ADVANTAGES",
    "CISPO",
    "DAPO",
    "DPPOTV",
    "GAE",
    "GRPO",
    "GSPO",
    "K25",
    "OBJECTIVES",
    "PPO",
    "SFT",
    "ClipCov",
    "DecoupledPPO",
    "DrGRPO",
    "EntropyBonus",
    "KLCov",
    "KLPenalty",
    "Normalisation",
    "Objective",
    "ObjectiveOutput",
    "Reinforce",
    "Rewarded",
    "Selects",
    "TokenBatch",
    "build_objective",
    "gae",
]
