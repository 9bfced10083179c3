"""How a batch is cut into the micro-batches of each data-parallel rank.

Either by a number of sequences, each padded to the batch's width, or by a budget of tokens: sequences of any length are
packed side by side, and dealt out so that every rank has the same number of micro-batches at nearly the same cost.
Every rank holds the whole batch and plans alike, so nothing is communicated.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from megatron.core.transformer import TransformerConfig

from megarl.config.training import RLConfig, SFTConfig
from megarl.megatron.world import Layout


@dataclass(frozen=True)
class TokenBudget:
    """Packs sequences into micro-batches of at most `tokens` tokens a rank.

    Under context parallelism a micro-batch is spread over that many ranks, and holds that many times the tokens.
    """

    tokens: int


MicroBatchSize = int | TokenBudget
"""Sequences that a rank runs at once, padded; or how many of their tokens, packed."""


def micro_batch_size(config: RLConfig | SFTConfig) -> MicroBatchSize:
    """What a phase of the recipe asks for."""
    return config.micro_batch_size if config.micro_batch_tokens is None else TokenBudget(config.micro_batch_tokens)


Rows = list[int]


@dataclass(frozen=True)
class Plan:
    """Which sequences are run when.

    Attributes:
        rows: of each data-parallel rank and each of its micro-batches, in the order that they are run.
        tokens: what each of those is padded to once packed, over all context-parallel ranks; None where sequences
            are padded one by one.
    """

    rows: list[list[Rows]]
    tokens: list[list[int]] | None


def plan_micro_batches(
    lengths: Sequence[int], size: MicroBatchSize, layout: Layout, cost: Callable[[int], float]
) -> Plan:
    """Cuts sequences into micro-batches.

    Args:
        lengths: tokens of each sequence that the model reads.
        size: see `MicroBatchSize`.
        layout: the ranks.
        cost: of a sequence of so many tokens, in any unit.

    Raises:
        ValueError: sequences by number do not split evenly over ranks and micro-batches, or one is longer than the
            budget.
    """
    if isinstance(size, TokenBudget):
        return _packed(lengths, size, layout, cost)
    share = len(lengths) // layout.data_size
    if share == 0 or len(lengths) % layout.data_size or share % size:
        raise ValueError(
            f"{len(lengths)} sequences do not split into micro-batches of {size} over {layout.data_size} "
            "data-parallel ranks"
        )
    starts = [range(rank * share, (rank + 1) * share, size) for rank in range(layout.data_size)]
    return Plan([[list(range(start, start + size)) for start in of_rank] for of_rank in starts], None)


def training_cost(config: TransformerConfig, vocab_size: int) -> Callable[[int], float]:
    """Multiply-adds of a forward pass over one sequence of so many tokens: weights, attention's triangle and the head.

    The forward pass and the backward pass, twice as dear, grow alike, so its multiple does not matter.
    """
    queries = config.num_attention_heads * config.kv_channels
    keys = config.num_query_groups * config.kv_channels
    attention = config.num_layers * (2 * queries + 2 * keys)
    products = 3 if config.gated_linear_unit else 2
    token = config.hidden_size * (attention + products * _feed_forward_width(config) + vocab_size)
    # query against key and probability against value: two products of a head's size with, on average, half the tokens
    pair = config.num_layers * queries

    def cost(length: int) -> float:
        return float(length * token + length * length * pair)

    return cost


def _feed_forward_width(config: TransformerConfig) -> int:
    """Width that a token's feed-forward layers have together: of a layer with experts, those that it is sent to."""
    if not config.num_moe_experts:
        return int(config.num_layers * config.ffn_hidden_size)
    every = config.moe_layer_freq
    routed = math.ceil(config.num_layers / every) if isinstance(every, int) else sum(every)
    dense = (config.num_layers - routed) * config.ffn_hidden_size
    return int(dense + routed * config.moe_router_topk * config.moe_ffn_hidden_size)


def _packed(lengths: Sequence[int], size: TokenBudget, layout: Layout, cost: Callable[[int], float]) -> Plan:
    """The fewest micro-batches that hold all sequences, each as dear as the next.

    Rows go, dearest first, to the cheapest micro-batch with room (Graham 1969's LPT rule).
    """
    capacity = size.tokens * layout.context_size // layout.token_multiple * layout.token_multiple
    aligned = [aligned_length(length, layout.token_multiple) for length in lengths]
    if max(aligned) > capacity:
        raise ValueError(
            f"a sequence of {max(aligned)} tokens does not fit into a micro-batch of {capacity}, which is {size.tokens}"
            f" a rank on {layout.context_size} context-parallel ranks"
        )
    costs = [cost(length) for length in aligned]
    # interleaved stages take turns of as many micro-batches as there are pipeline ranks
    step = layout.pipeline_size if layout.virtual_size > 1 else 1
    count = aligned_length(math.ceil(sum(aligned) / (capacity * layout.data_size)), step)
    while (bins := _fill(aligned, costs, capacity, count * layout.data_size)) is None:
        count += step
    dealt = _deal(bins, costs, layout.data_size)
    # an empty micro-batch still runs, on padding: its rank must enter the same collectives as the others
    tokens = [[max(sum(aligned[row] for row in rows), layout.token_multiple) for rows in of_rank] for of_rank in dealt]
    if layout.pipeline_size > 1:
        # stages exchange activations of one shape
        widest = max(max(of_rank) for of_rank in tokens)
        tokens = [[widest for _ in of_rank] for of_rank in tokens]
    return Plan(dealt, tokens)


def aligned_length(length: int, multiple: int) -> int:
    """The length rounded up to the multiple."""
    return math.ceil(length / multiple) * multiple


def _fill(aligned: Sequence[int], costs: Sequence[float], capacity: int, count: int) -> list[Rows] | None:
    """`count` bins with all rows in them, or None where this rule finds no room for one."""
    bins: list[Rows] = [[] for _ in range(count)]
    loads, room = [0.0] * count, [capacity] * count
    for row in sorted(range(len(aligned)), key=lambda row: -costs[row]):
        open_bins = [index for index in range(count) if room[index] >= aligned[row]]
        if not open_bins:
            return None
        best = min(open_bins, key=lambda index: loads[index])
        bins[best].append(row)
        loads[best] += costs[row]
        room[best] -= aligned[row]
    return [sorted(rows) for rows in bins]


def _deal(bins: list[Rows], costs: Sequence[float], data_size: int) -> list[list[Rows]]:
    """Bins to ranks: the dearest are run together, and the order turns each time, so that totals even out."""
    ranked = sorted(bins, key=lambda rows: -sum(costs[row] for row in rows))
    dealt: list[list[Rows]] = [[] for _ in range(data_size)]
    for start in range(0, len(ranked), data_size):
        turn = ranked[start : start + data_size]
        for rank, rows in enumerate(turn if start // data_size % 2 == 0 else reversed(turn)):
            dealt[rank].append(rows)
    return dealt
