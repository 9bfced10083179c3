"""What a report and a comparison know of a dump: read once, a few responses at a time."""

from dataclasses import dataclass

import torch
from torch import Tensor

from megarl.drift.log_ratios import LogRatios
from megarl.dumps.errors import DumpError
from megarl.dumps.kept import Kept, KeptCounter
from megarl.dumps.open import Dump
from megarl.dumps.responses import Responses
from megarl.dumps.worst import Sample, Worst


@dataclass(frozen=True)
class Measured:
    """A dump's numbers. Memory: 48 bytes a token that is compared, and 40 a response.

    Attributes:
        ratios: of the tokens that both sides gave a finite log-prob.
        tokens_R: int64, tokens that are compared of each of the R responses that have one.
        rewards_R: fp64, their rewards, NaN where not known.
        tokens: tokens that the engine sampled.
        responses: responses in the dump, empty ones too.
        kept: what each correction would leave.
        worst: the responses with the largest drift.
        replica_N: int64, of the tokens of `ratios`; see `Responses`.
        age_N: int64, likewise.
    """

    ratios: LogRatios
    tokens_R: Tensor
    rewards_R: Tensor
    tokens: int
    responses: int
    kept: list[Kept]
    worst: list[Sample]
    replica_N: Tensor
    age_N: Tensor


def measured(dump: Dump) -> Measured:
    """Reads the dump.

    Raises:
        DumpError: what its reader refuses, or no token has log-probs of both sides.
    """
    trainer, rollout, position, replica, age, tokens_of, rewards = [], [], [], [], [], [], []
    tokens = responses = 0
    kept, worst = KeptCounter(), Worst()
    for chunk in dump.read():
        usable_N = chunk.usable_N
        trainer.append(chunk.trainer_log_probs_N[usable_N])
        rollout.append(chunk.rollout_log_probs_N[usable_N])
        position.append(_places(chunk)[usable_N])
        replica.append(chunk.replica_N[usable_N])
        age.append(chunk.age_N[usable_N])
        tokens_B = torch.bincount(chunk.row_N[usable_N], minlength=len(chunk))
        tokens_of.append(tokens_B[tokens_B > 0])
        rewards.append(chunk.rewards_B[tokens_B > 0])
        tokens += int(chunk.generated_N.sum())
        responses += len(chunk)
        kept.add(chunk)
        worst.add(chunk)
    if not responses:
        raise DumpError(f"{dump.path} holds no response; name a dump that does.")
    tokens_R = torch.cat(tokens_of)
    if not len(tokens_R):
        raise DumpError(
            f"{dump.path} has no token with a finite log-prob of trainer and engine both; have the engine "
            "return its own."
        )
    ratios = flat_ratios(torch.cat(trainer), torch.cat(rollout), torch.cat(position), tokens_R)
    return Measured(
        ratios=ratios,
        tokens_R=tokens_R,
        rewards_R=torch.cat(rewards),
        tokens=tokens,
        responses=responses,
        kept=kept.result(),
        worst=worst.result(),
        replica_N=torch.cat(replica),
        age_N=torch.cat(age),
    )


def flat_ratios(trainer_N: Tensor, rollout_N: Tensor, position_N: Tensor, tokens_R: Tensor) -> LogRatios:
    """The log-ratios of N tokens of R responses, one response after the other.

    Args:
        trainer_N: fp64, finite, nats.
        rollout_N: likewise.
        position_N: int64, each token's place among its response's generated tokens.
        tokens_R: int64, how many of the tokens are of each response; none is 0.
    """
    log_ratio_N = trainer_N - rollout_N
    row_N = torch.repeat_interleave(torch.arange(len(tokens_R)), tokens_R)

    def sums(values_N: Tensor) -> Tensor:
        return torch.bincount(row_N, values_N, minlength=len(tokens_R))

    sum_R = sums(log_ratio_N)
    return LogRatios(
        log_ratio_N=log_ratio_N,
        trainer_N=trainer_N,
        rollout_N=rollout_N,
        position_N=position_N,
        sum_R=sum_R,
        mean_R=sum_R / tokens_R,
        trainer_mean_R=sums(trainer_N) / tokens_R,
        rollout_mean_R=sums(rollout_N) / tokens_R,
        compared_BT=torch.ones(1, len(log_ratio_N), dtype=torch.bool),
    )


def _places(chunk: Responses) -> Tensor:
    """Int64, each token's place among its response's generated tokens, from 0."""
    before_N = chunk.generated_N.cumsum(dim=0) - chunk.generated_N.long()
    begins_B = (chunk.lengths_B.cumsum(dim=0) - chunk.lengths_B).clamp(max=max(0, len(before_N) - 1))
    return before_N - before_N[begins_B][chunk.row_N] if len(before_N) else before_N
