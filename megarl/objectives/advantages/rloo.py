"""RLOO (Ahmadian et al. 2024, 2402.14740, section 2.3): the baseline is the mean of the other responses.

R_i - mean_{j != i} R_j = (R_i - mean) G / (G - 1)
"""

from torch import Tensor

from megarl.objectives.advantages.group import by_group
from megarl.objectives.advantages.inputs import Rewarded


def rloo(batch: Rewarded) -> Tensor:
    """Leave-one-out advantages, unbiased."""
    return by_group(batch, lambda group: (group - group.mean()) * (len(group) / (len(group) - 1)))
