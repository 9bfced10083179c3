"""Dr. GRPO's advantage (Liu et al. 2025, 2503.20783, section 3.2): R - mean, not divided by the standard deviation."""

from torch import Tensor

from megarl.objectives.advantages.group import by_group
from megarl.objectives.advantages.inputs import Rewarded


def dr_grpo(batch: Rewarded) -> Tensor:
    """Rewards less their group's mean; hard and easy prompts weigh alike."""
    return by_group(batch, lambda group: group - group.mean())
