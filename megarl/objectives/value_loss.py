"""PPO's clipped value loss, of OpenAI's baselines (ppo2); the paper (1707.06347, eq. 9) has no clip.

    0.5 max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2)

V is the critic, V_old its value before the batch, R the return that GAE gives. Default c: 0.2.
"""

import torch
from torch import Tensor

from megarl.objectives.masked import masked


def clipped_value_loss(
    values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """See the module's formula.

    Returns:
        Loss of each token, 0 outside the mask; and a bool tensor, True where the clip took the gradient away.
    """
    values_BT, old_BT, returns_BT = (masked(value, mask_BT) for value in (values_BT, old_values_BT, returns_BT))
    unclipped = (values_BT - returns_BT).square()
    clipped = (old_BT + (values_BT - old_BT).clamp(-clip, clip) - returns_BT).square()
    return 0.5 * torch.maximum(unclipped, clipped), clipped > unclipped
