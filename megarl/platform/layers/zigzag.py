"""Megatron's context-parallel layout: of 2C chunks of a sequence, rank r holds the chunks r and 2C-1-r."""

import torch
from torch import Tensor


def check_divides(length: int, ranks: int) -> None:
    """Raises ValueError unless a sequence of `length` tokens can be cut into 2 * `ranks` chunks."""
    if length % (2 * ranks):
        raise ValueError(
            f"a sequence of {length} tokens does not divide by {2 * ranks}, twice the context-parallel size: pad it."
        )


def query_positions(length: int, ranks: int, rank: int, device: torch.device | None = None) -> Tensor:
    """Positions in its sequence of the tokens that a rank holds, in the order it holds them.

    Args:
        length: tokens of the sequence over all ranks.
        ranks: context-parallel size C.
        rank: this rank in it.
        device: of the result.

    Returns:
        [length / C] int64.

    Raises:
        ValueError: the length does not divide by 2C.
    """
    check_divides(length, ranks)
    chunk = length // (2 * ranks)
    first = torch.arange(rank * chunk, (rank + 1) * chunk, device=device)
    last = 2 * ranks - 1 - rank
    return torch.cat([first, torch.arange(last * chunk, (last + 1) * chunk, device=device)])


def natural_order(gathered: Tensor, rows: slice) -> Tensor:
    """One sequence's tokens in their order, from what all ranks hold.

    Args:
        gathered: [C, t, ...], each rank's tokens.
        rows: the tokens of the sequence in each rank's t; an even number.

    Returns:
        [C * len(rows), ...].
    """
    local = gathered[:, rows]
    half = local.size(1) // 2
    return torch.cat([local[:, :half].flatten(0, 1), local[:, half:].flip(0).flatten(0, 1)])


def owners(positions: Tensor, lengths: Tensor, ranks: int) -> Tensor:
    """The rank that holds each token, int64 in the shape of `positions`.

    Args:
        positions: of the tokens in their sequences.
        lengths: of those sequences over all ranks, the same shape; multiples of 2C, or anything where C is 1.
        ranks: context-parallel size C.
    """
    chunk = positions * (2 * ranks) // lengths
    return torch.minimum(chunk, 2 * ranks - 1 - chunk)
