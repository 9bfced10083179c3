"""Triton kernels over one chunk's logits: the softmax's statistics, and its gradient, in one read each.

The running maximum with rescaled sums is the online softmax of Milakov and Gimelshein (arXiv:1805.02867, algorithm 3),
with the entropy's sum carried along. Arithmetic is fp32, of fp32, bf16 and fp16 logits. A row's offset is a 64-bit
number: a chunk may have more than 2^31 logits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits that a program holds at once: 16 to a thread of 8 warps."""
_WARPS = 8
_NEGLIGIBLE = tl.constexpr(-1e30)
"""The maximum of no logits, as the torch path has it: a difference of it is finite, which one of -inf is not."""


def softmax_statistics(
    logits_NV: Tensor, targets_N: Tensor, scale: float, start: int, valid: int, floor_N: Tensor | None = None
) -> Tensor:
    """What one rank's columns say of the softmax of the scaled logits: fp32 [N, 4].

    The four are the largest scaled logit, m; sum exp(x - m); sum exp(x - m) (x - m); and the target's scaled logit, 0
    where another rank holds it. Without a column in the support they are -1e30, 0, 0, 0.

    Args:
        logits_NV: fp32, bf16 or fp16, the last dimension contiguous.
        targets_N: int64 token ids, of the whole vocabulary.
        scale: multiplies the logits: 1 / temperature.
        start: token of the first column.
        valid: number of leading columns that are tokens; the rest are not read.
        floor_N: fp32; a scaled logit strictly below its row's is outside the support and has probability 0, the
            target's excepted. None where all of the vocabulary is the support.
    """
    _check(logits_NV)
    statistics_N4 = torch.empty(len(logits_NV), 4, dtype=torch.float32, device=logits_NV.device)
    _statistics[(len(logits_NV),)](
        logits_NV, targets_N.contiguous(), _packed(floor_N), statistics_N4, logits_NV.stride(0), scale, start, valid,
        HAS_FLOOR=floor_N is not None, BLOCK=BLOCK, num_warps=_WARPS,
    )  # fmt: skip
    return statistics_N4


def softmax_gradient(
    logits_NV: Tensor,
    targets_N: Tensor,
    log_z_N: Tensor,
    entropy_N: Tensor,
    by_log_probs_N: Tensor,
    by_entropy_N: Tensor | None,
    scale: float,
    start: int,
    valid: int,
    floor_N: Tensor | None = None,
    *,
    out_NV: Tensor,
) -> None:
    """Writes scale dL/dx of the scaled logits x, from dL/d log p_target and dL/dH of each row.

    d log p_target / dx = onehot - p;  dH / dx = -p (log p + H). It is 0 outside the support and beyond `valid`.

    Args:
        logits_NV: see `softmax_statistics`, as are `targets_N`, `scale`, `start`, `valid` and `floor_N`.
        targets_N: see there.
        log_z_N: fp32 log-partition of the scaled logits over the whole vocabulary.
        entropy_N: fp32 entropy over the whole vocabulary.
        by_log_probs_N: fp32 gradient of the log-probs.
        by_entropy_N: fp32 gradient of the entropies; None where the loss does not read them.
        scale: see there, as are the next three.
        start: see there.
        valid: see there.
        floor_N: see there.
        out_NV: takes the gradient, in its own dtype. It may be `logits_NV`.
    """
    _check(logits_NV)
    _check(out_NV)
    rows, columns = logits_NV.shape
    _gradient[(rows, triton.cdiv(columns, BLOCK))](
        logits_NV, out_NV, targets_N.contiguous(),
        *(_packed(value_N) for value_N in (floor_N, log_z_N, entropy_N, by_log_probs_N, by_entropy_N)),
        logits_NV.stride(0), out_NV.stride(0), columns, scale, start, valid,
        HAS_FLOOR=floor_N is not None, HAS_ENTROPY=by_entropy_N is not None, BLOCK=BLOCK, num_warps=_WARPS,
    )  # fmt: skip


def _check(logits_NV: Tensor) -> None:
    if logits_NV.dtype == torch.float64 or (logits_NV.shape[1] > 1 and logits_NV.stride(1) != 1):
        raise ValueError(f"logits of {logits_NV.dtype} with strides {logits_NV.stride()} are not the kernels'")


def _packed(value_N: Tensor | None) -> Tensor | None:
    """One number a row in memory: autograd hands on gradients that are one number in all."""
    return None if value_N is None else value_N.float().contiguous()


@triton.jit  # type: ignore[untyped-decorator]
def _statistics(
    logits: tl.tensor, targets: tl.tensor, floors: tl.tensor, statistics: tl.tensor,
    stride: tl.tensor, scale: tl.tensor, start: tl.tensor, valid: tl.tensor,
    HAS_FLOOR: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row) - start
    if HAS_FLOOR:
        floor = tl.load(floors + row)
    largest = tl.full((), _NEGLIGIBLE, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    weighted = tl.full((), 0.0, tl.float32)
    for begin in range(0, valid, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        inside = columns < valid
        x = tl.load(logits + columns, mask=inside, other=0.0).to(tl.float32) * scale
        if HAS_FLOOR:
            # a NaN is below no floor, and must show
            inside = inside & ((columns == target) | ~(x < floor))
        x = tl.where(inside, x, _NEGLIGIBLE)
        new = tl.maximum(largest, tl.max(x, 0))
        exponential = tl.where(inside, tl.exp(x - new), 0.0)
        # the sums so far, as if the new maximum had been taken off
        change = largest - new
        kept = tl.exp(change)
        weighted = kept * (weighted + total * change) + tl.sum(exponential * (x - new), 0)
        total = kept * total + tl.sum(exponential, 0)
        largest = new
    is_mine = (target >= 0) & (target < valid)
    target_logit = tl.load(logits + target, mask=is_mine, other=0.0).to(tl.float32) * scale
    tl.store(statistics + row * 4, largest)
    tl.store(statistics + row * 4 + 1, total)
    tl.store(statistics + row * 4 + 2, weighted)
    tl.store(statistics + row * 4 + 3, target_logit)


@triton.jit  # type: ignore[untyped-decorator]
def _gradient(
    logits: tl.tensor, out: tl.tensor, targets: tl.tensor, floors: tl.tensor,
    log_zs: tl.tensor, entropies: tl.tensor, by_log_probs: tl.tensor, by_entropies: tl.tensor,
    stride: tl.tensor, out_stride: tl.tensor, width: tl.tensor, scale: tl.tensor, start: tl.tensor, valid: tl.tensor,
    HAS_FLOOR: tl.constexpr, HAS_ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < valid
    is_target = columns == tl.load(targets + row) - start
    x = tl.load(logits + row * stride + columns, mask=inside, other=0.0).to(tl.float32) * scale
    if HAS_FLOOR:
        inside = inside & (is_target | ~(x < tl.load(floors + row)))
    by_log_prob = tl.load(by_log_probs + row)
    log_p = x - tl.load(log_zs + row)
    slope = by_log_prob
    if HAS_ENTROPY:
        slope = by_log_prob + tl.load(by_entropies + row) * (log_p + tl.load(entropies + row))
    gradient = tl.where(is_target, by_log_prob, 0.0) - tl.exp(log_p) * slope
    gradient = tl.where(inside, gradient * scale, 0.0)
    tl.store(out + row * out_stride + columns, gradient.to(out.dtype.element_ty), mask=columns < width)
