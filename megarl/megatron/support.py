"""The tokens that top-k and top-p leave to sample from, each row's as one number: the least logit among them.

An engine that truncates samples from a distribution over the survivors alone. A trainer that normalises over the whole
vocabulary is off by the survivors' probability at every token, however equal the logits are.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from megarl.megatron.distribution import Distribution, VocabularyShard

NEGLIGIBLE = -1e30
"""Logit of a token that has no probability: that is exactly 0, and 0 times it is 0, which -inf would not give."""
_FIRST_CANDIDATES, _GROWTH = 128, 8
"""Likeliest tokens of a shard that top-p looks at; where they do not reach it, so many times more, up to all."""
_CANDIDATES_BYTES, _CANDIDATE_BYTES = 64 * 2**20, 40
"""Most that the candidates of some rows take at once; and one of them: values and int64 columns, found and sorted."""


@torch.no_grad()
def support_floor(logits_NV: Tensor, distribution: Distribution) -> Tensor | None:
    """The least logit [N] of each row that sampling leaves in; None where it leaves all in.

    Exact over the whole vocabulary, whatever its split: top-k first, then of what that leaves the fewest likeliest
    tokens whose probability reaches top-p, the likeliest in any case. Tokens that tie with the last one are in.

    Args:
        logits_NV: what `scaled_logits` gave.
        distribution: what they stand for. Two to four collectives are its group's, more where top-p needs many tokens.
    """
    sampling, shard = distribution.sampling, distribution.shard
    if not sampling.truncates:
        return None
    floor_N = logits_NV.new_full((len(logits_NV),), -torch.inf)
    if sampling.top_k:
        floor_N = _top_k_floor(logits_NV, sampling.top_k, shard)
    if sampling.top_p < 1.0:
        floor_N = _top_p_floor(logits_NV, floor_N, sampling.top_p, sampling.top_k or _FIRST_CANDIDATES, shard)
    return floor_N


def restrict(logits_NV: Tensor, floor_N: Tensor | None, targets_N: Tensor, shard: VocabularyShard) -> None:
    """Takes the probability of what lies below the floor, in place, but for each row's target, which always counts.

    A target of another sampler's may lie outside: counted as inside, its log-prob is small and has a gradient.
    """
    if floor_N is None:
        return
    outside_NV = logits_NV < floor_N[:, None]
    columns_N, mine_N = shard.columns_of(targets_N)
    columns_N1 = columns_N[:, None]
    outside_NV.scatter_(-1, columns_N1, outside_NV.gather(-1, columns_N1) & ~mine_N[:, None])
    logits_NV.masked_fill_(outside_NV, NEGLIGIBLE)


@torch.no_grad()
def is_outside(logits_NV: Tensor, floor_N: Tensor, targets_N: Tensor, shard: VocabularyShard) -> Tensor:
    """Whether each target lies below its row's floor, bool [N] on every rank."""
    columns_N, mine_N = shard.columns_of(targets_N)
    below_N = (logits_NV.gather(-1, columns_N[:, None])[:, 0] < floor_N) & mine_N
    return shard.reduce(below_N.int(), dist.ReduceOp.MAX).bool()


def _top_k_floor(logits_NV: Tensor, top_k: int, shard: VocabularyShard) -> Tensor:
    """The top_k-th largest logit of each row, of the last column where there are fewer."""
    own_NK = logits_NV.topk(min(top_k, logits_NV.shape[-1]), dim=-1).values
    candidates_NC = torch.cat(shard.gather(own_NK), dim=-1)
    return candidates_NC.topk(min(top_k, candidates_NC.shape[-1]), dim=-1).values[:, -1].contiguous()


def _top_p_floor(logits_NV: Tensor, floor_N: Tensor, top_p: float, candidates: int, shard: VocabularyShard) -> Tensor:
    """The floor of top-p among the tokens at or above another floor."""
    columns = logits_NV.shape[-1]
    top_N = shard.reduce(logits_NV.amax(dim=-1), dist.ReduceOp.MAX)
    mass_NV = logits_NV - top_N[:, None]
    mass_NV.exp_().masked_fill_(logits_NV < floor_N[:, None], 0.0)
    wanted_N = top_p * shard.reduce(mass_NV.sum(dim=-1))
    del mass_NV
    result_N = floor_N.clone()
    rows_M = torch.arange(len(logits_NV), device=logits_NV.device)
    while len(rows_M):
        candidates = min(candidates, columns)
        # the ranks agree on which rows are left, and so on how often they gather
        at_once = max(1, _CANDIDATES_BYTES // (_CANDIDATE_BYTES * candidates * shard.ranks))
        left = []
        for rows in rows_M.split(at_once):
            found, floor = _among_candidates(
                logits_NV[rows], floor_N[rows], top_N[rows], wanted_N[rows], candidates, shard
            )
            result_N[rows[found]] = floor[found]
            left.append(rows[~found])
        rows_M = torch.cat(left) if candidates < columns else rows_M[:0]
        candidates *= _GROWTH
    return result_N


def _among_candidates(
    logits_NV: Tensor, floor_N: Tensor, top_N: Tensor, wanted_N: Tensor, candidates: int, shard: VocabularyShard
) -> tuple[Tensor, Tensor]:
    """Which rows the largest logits of every shard settle, and their floors.

    A shard's tokens that are no candidates are at most its least candidate. So of the tokens above the largest of
    those, none is missing.
    """
    own_NK = logits_NV.topk(candidates, dim=-1).values
    gathered = shard.gather(own_NK)
    sorted_NC = torch.cat(gathered, dim=-1).sort(dim=-1, descending=True).values
    mass_NC = (sorted_NC - top_N[:, None]).exp_().masked_fill_(sorted_NC < floor_N[:, None], 0.0)
    reached_NC = mass_NC.cumsum(dim=-1) >= wanted_N[:, None]
    reaching_N = sorted_NC.gather(-1, reached_NC.int().argmax(dim=-1, keepdim=True))[:, 0]
    is_reached_N = reached_NC.any(dim=-1)
    if candidates == logits_NV.shape[-1]:
        complete_N = torch.ones_like(is_reached_N)
        least_N = torch.full_like(floor_N, -torch.inf)
    else:
        least_N = torch.stack([of_rank[:, -1] for of_rank in gathered]).amax(dim=0)
        complete_N = least_N <= floor_N
    # where rounding keeps the sum below top_p of the total, nothing is left out
    floor_found_N = torch.where(is_reached_N, torch.maximum(reaching_N, floor_N), floor_N)
    return (is_reached_N & (reaching_N >= least_N)) | complete_N, floor_found_N
