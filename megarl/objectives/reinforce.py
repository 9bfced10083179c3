"""REINFORCE (Williams 1992): the plain policy gradient, -A log policy per token.

It takes one update a batch: nothing in it knows that the policy has moved. At any ratio the gradient is
-A grad log policy.
"""

from dataclasses import dataclass
from typing import ClassVar

from megarl.objectives.batch import ObjectiveOutput, TokenBatch
from megarl.objectives.masked import masked


@dataclass(frozen=True)
class Reinforce:
    """-A log policy."""

    needs: ClassVar[frozenset[str]] = frozenset({"advantages_BT"})
    token_local: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch) -> ObjectiveOutput:
        """See the module's formula."""
        advantages_BT = masked(batch.given("advantages_BT"), batch.mask_BT)
        return ObjectiveOutput(-advantages_BT * masked(batch.log_probs_BT, batch.mask_BT), {})
