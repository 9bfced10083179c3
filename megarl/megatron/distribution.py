"""Which distribution a row of logits stands for: how tokens are sampled, and which columns are here."""

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from megarl.config.rollout import RolloutConfig
from megarl.platform.invariant.linear import linear


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn from logits; log-probs are those of the distribution that this leaves.

    Attributes:
        temperature: divides the logits, before all else.
        top_p: of what top_k leaves, the fewest likeliest tokens whose probability reaches it; 1 for all.
        top_k: the likeliest tokens, so many; 0 for all.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    @staticmethod
    def of(rollout: RolloutConfig) -> "Sampling":
        """The recipe's."""
        return Sampling(rollout.temperature, rollout.top_p, rollout.top_k)

    @property
    def truncates(self) -> bool:
        """Whether some tokens cannot be drawn."""
        return self.top_p < 1.0 or self.top_k > 0


PLAIN = Sampling()
"""The softmax of the logits."""


@dataclass(frozen=True)
class VocabularyShard:
    """Which columns of the vocabulary this rank's logits are.

    Attributes:
        group: the tensor-parallel process group, or None where the logits are whole.
        start: index of the first column in the vocabulary.
        valid: number of leading columns that are real tokens; the rest pad the shard.
    """

    group: dist.ProcessGroup | None
    start: int
    valid: int

    @staticmethod
    def of(columns: int, vocab_size: int, group: dist.ProcessGroup | None) -> "VocabularyShard":
        """The shard of this rank, given its number of logit columns."""
        start = 0 if group is None else dist.get_rank(group) * columns
        return VocabularyShard(group, start, max(0, min(columns, vocab_size - start)))

    @property
    def ranks(self) -> int:
        """Over which the vocabulary is split."""
        return 1 if self.group is None else dist.get_world_size(self.group)

    def reduce(self, value: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """Reduces over the group, in place."""
        if self.ranks > 1:
            dist.all_reduce(value, op=op, group=self.group)
        return value

    def gather(self, value: Tensor) -> list[Tensor]:
        """Every rank's value, in the group's order."""
        if self.ranks == 1:
            return [value]
        gathered = [value.new_empty(value.shape) for _ in range(self.ranks)]
        dist.all_gather(gathered, value.contiguous(), group=self.group)
        return gathered

    def columns_of(self, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """Column of each token id, and whether this rank holds it; the column of one that it does not hold is 0."""
        columns_N = targets_N - self.start
        mine_N = (columns_N >= 0) & (columns_N < self.valid)
        return columns_N.where(mine_N, 0), mine_N


@dataclass(frozen=True)
class Distribution:
    """What turns this rank's logits into probabilities.

    Attributes:
        shard: which columns they are.
        sampling: how tokens are drawn from them.
        batch_invariant: whether logits and log-probs are formed so that their bits depend on no other token.
    """

    shard: VocabularyShard
    sampling: Sampling = PLAIN
    batch_invariant: bool = False

    def logits(self, hidden_NH: Tensor, weight_VH: Tensor) -> Tensor:
        """The output layer's product, [N, V / tensor] in the operands' dtype."""
        return linear(hidden_NH, weight_VH) if self.batch_invariant else hidden_NH @ weight_VH.t()
