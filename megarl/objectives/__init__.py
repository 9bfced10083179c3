"""Objectives, advantages and KL estimators: tensors in, per-token terms and sums out.

Importing this package needs torch alone: nothing here knows of processes, Megatron or files.
"""

from megarl.objectives.advantages import ADVANTAGES
from megarl.objectives.batch import Objective, ObjectiveOutput, TokenBatch
from megarl.objectives.grpo import GRPO
from megarl.objectives.registry import OBJECTIVES, build_objective
from megarl.objectives.sft import SFT

__all__ = ["ADVANTAGES", "GRPO", "OBJECTIVES", "SFT", "Objective", "ObjectiveOutput", "TokenBatch", "build_objective"]
