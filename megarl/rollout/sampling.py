"""Sampling whose randomness belongs to the response, not to the batch."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from megarl.platform.invariant.elementary import exp
from megarl.platform.invariant.rows import log_softmax
from megarl.rollout.request_key import request_key
from megarl.rollout.types import Request


def uniforms(requests: Sequence[Request], seed: int, count: int) -> Tensor:
    """`count` numbers in [0, 1) for each request, keyed by seed, stream, problem and sample.

    Returns:
        fp64 [B, count]; the same for a request whatever the others are, so a response does not depend on how a
        batch is spread over ranks.
    """
    rows = np.empty((len(requests), count))
    for row, request in enumerate(requests):
        key = np.frombuffer(request_key(request, seed), dtype=np.uint64)
        np.random.Generator(np.random.Philox(key=key)).random(out=rows[row])
    return torch.from_numpy(rows)


def sample(
    logits_BV: Tensor,
    temperature: float,
    uniforms_B: Tensor | None,
    top_p: float = 1.0,
    top_k: int = 0,
    *,
    batch_invariant: bool = False,
) -> tuple[Tensor, Tensor]:
    """Draws one token a row by inverting the cumulative distribution.

    Args:
        logits_BV: next-token logits.
        temperature: divides the logits.
        uniforms_B: one number in [0, 1) a row, or None to take the likeliest token.
        top_p: see `SamplingParams`. As in vLLM, temperature comes first, then top_k, then top_p; tokens that tie with
            the last one left are left too.
        top_k: see there.
        batch_invariant: whether a row's log-probs are the same bits whatever the other rows are; without truncation.

    Returns:
        int64 tokens [B], and their fp32 log-probs [B] in nats under softmax(logits / temperature) over the tokens
        that are left.
    """
    left_BV = _left(logits_BV.float() / temperature, top_p, top_k)
    log_probs_BV = log_softmax(left_BV) if batch_invariant else F.log_softmax(left_BV, dim=-1)
    if uniforms_B is None:
        tokens_B = log_probs_BV.argmax(dim=-1)
    else:
        wide_BV = log_probs_BV.double()
        cumulative_BV = (exp(wide_BV) if batch_invariant else wide_BV.exp()).cumsum(dim=-1)
        # scaled by the total, which rounding leaves beside 1, so that the last token with mass can be drawn and no
        # token without mass ever is
        thresholds_B1 = (uniforms_B.to(cumulative_BV.device) * cumulative_BV[:, -1])[:, None]
        tokens_B = torch.searchsorted(cumulative_BV, thresholds_B1, right=True)[:, 0].clamp(max=logits_BV.shape[-1] - 1)
    return tokens_B, log_probs_BV.gather(-1, tokens_B[:, None])[:, 0]


def _left(logits_BV: Tensor, top_p: float, top_k: int) -> Tensor:
    """The logits with -inf for tokens that are not sampled, in place."""
    if top_k:
        least_B1 = logits_BV.topk(min(top_k, logits_BV.shape[-1]), dim=-1).values[:, -1:]
        logits_BV.masked_fill_(logits_BV < least_B1, -torch.inf)
    if top_p < 1.0:
        sorted_BV = logits_BV.sort(dim=-1, descending=True).values
        cumulative_BV = sorted_BV.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
        before_B1 = (cumulative_BV < top_p).sum(dim=-1, keepdim=True)
        least_B1 = sorted_BV.gather(-1, before_B1.clamp(max=logits_BV.shape[-1] - 1))
        logits_BV.masked_fill_(logits_BV < least_B1, -torch.inf)
    return logits_BV
