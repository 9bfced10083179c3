"""Advantage estimators, by name. Each takes rewards and prompt identities and returns one advantage a response."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from megarl.objectives.advantages.grpo import grpo_advantages

Estimator = Callable[[Tensor, Sequence[str]], Tensor]

ADVANTAGES: Mapping[str, Estimator] = {"grpo": grpo_advantages}
