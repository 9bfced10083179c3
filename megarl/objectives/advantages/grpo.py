"""GRPO's group-relative advantage (Shao et al. 2024, 2402.03300, section 4.1.2): (R - mean) / std."""

from torch import Tensor

from megarl.objectives.advantages.group import by_group
from megarl.objectives.advantages.inputs import Rewarded

STD_EPSILON = 1e-6


def grpo(batch: Rewarded) -> Tensor:
    """Rewards standardised within their group, by the unbiased standard deviation + 1e-6; the paper says neither."""
    return by_group(batch, lambda group: (group - group.mean()) / (group.std() + STD_EPSILON))
