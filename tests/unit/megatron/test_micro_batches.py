"""How sequences are dealt out to ranks and micro-batches."""

import random
from dataclasses import replace

import pytest
from megatron.core.transformer import TransformerConfig

from megarl.megatron.micro_batches import Plan, TokenBudget, plan_micro_batches, training_cost
from megarl.megatron.world import Layout

ALONE = Layout(0, 1, 0, 1, True, True)
LENGTHS = [random.Random(3).choice((5, 9, 40, 120)) + row % 7 for row in range(64)]


def quadratic(length: int) -> float:
    """Attention weighs as much as the rest at 100 tokens."""
    return length + length * length / 100


def ranks(count: int, **others: int) -> Layout:
    return replace(ALONE, world_size=count, data_size=count, **others)


def packed(lengths: list[int], tokens: int, layout: Layout) -> Plan:
    plan = plan_micro_batches(lengths, TokenBudget(tokens), layout, quadratic)
    assert sorted(row for of_rank in plan.rows for rows in of_rank for row in rows) == list(range(len(lengths)))
    assert len({len(of_rank) for of_rank in plan.rows}) == 1, "ranks of unlike counts wait for each other for ever"
    return plan


def test_rows_are_consecutive() -> None:
    plan = plan_micro_batches([1] * 12, 2, ranks(3), quadratic)
    assert plan.rows == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]] and plan.tokens is None


@pytest.mark.parametrize(("count", "size"), [(12, 5), (12, 8), (13, 1), (1, 1), (0, 1)])
def test_rows_that_do_not_split_are_refused(count: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"{count} sequences do not split into micro-batches of {size} over 2"):
        plan_micro_batches([1] * count, size, ranks(2), quadratic)


@pytest.mark.parametrize("data", [1, 2, 3, 8])
@pytest.mark.parametrize("budget", [130, 300, 5000])
def test_every_sequence_is_packed_once_within_the_budget(data: int, budget: int) -> None:
    plan = packed(LENGTHS, budget, ranks(data))
    assert plan.tokens is not None
    for of_rank, tokens in zip(plan.rows, plan.tokens, strict=True):
        assert tokens == [max(1, sum(LENGTHS[row] for row in rows)) for rows in of_rank]
        assert max(tokens) <= budget
    # one micro-batch a rank less failed, so every bin held more than the budget less the longest sequence
    assert (len(plan.rows[0]) - 1) * data < sum(LENGTHS) / (budget - max(LENGTHS))


@pytest.mark.parametrize("data", [2, 4, 8])
def test_ranks_have_nearly_the_same_cost(data: int) -> None:
    plan = packed(LENGTHS, 300, ranks(data))
    costs = [sum(quadratic(LENGTHS[row]) for rows in of_rank for row in rows) for of_rank in plan.rows]
    # dealing out whole sequences cannot come nearer than about one of them
    assert max(costs) - min(costs) <= quadratic(max(LENGTHS))
    by_tokens_alone = [sum(LENGTHS[row] for rows in of_rank for row in rows) for of_rank in plan.rows]
    assert len(set(by_tokens_alone)) > 1, "the batch must tell cost from tokens"


def test_fewer_sequences_than_ranks_leave_padding_to_the_others() -> None:
    plan = packed([7, 7], 100, ranks(4, token_multiple=4, context_size=2))
    assert sorted(len(rows) for of_rank in plan.rows for rows in of_rank) == [0, 0, 1, 1]
    assert plan.tokens == [[8], [8], [4], [4]]


def test_pipeline_stages_exchange_one_shape() -> None:
    plan = packed(LENGTHS, 300, ranks(2, pipeline_size=2))
    assert plan.tokens is not None and len({tokens for of_rank in plan.tokens for tokens in of_rank}) == 1


def test_context_ranks_share_the_budget() -> None:
    alone, shared = packed(LENGTHS, 300, ALONE), packed(LENGTHS, 150, ranks(1, context_size=2, token_multiple=4))
    assert shared.tokens is not None and all(tokens % 4 == 0 and tokens <= 300 for tokens in shared.tokens[0])
    assert len(shared.rows[0]) - len(alone.rows[0]) in (0, 1)


def test_a_sequence_beyond_the_budget_is_refused() -> None:
    with pytest.raises(
        ValueError, match="a sequence of 24 tokens does not fit into a micro-batch of 20, which is 10 a"
    ):
        plan_micro_batches([3, 21], TokenBudget(10), ranks(1, context_size=2, token_multiple=4), quadratic)


def test_cost_counts_each_multiply_add() -> None:
    config = TransformerConfig(
        num_layers=3, hidden_size=8, num_attention_heads=4, num_query_groups=2, kv_channels=5, ffn_hidden_size=7,
        gated_linear_unit=True,
    )  # fmt: skip
    weights = 3 * (8 * 20 + 2 * 8 * 10 + 20 * 8 + 3 * 8 * 7) + 8 * 11
    # a pair of tokens costs 20 for the score and 20 for the value; causality leaves half of the pairs
    assert training_cost(config, 11)(6) == 6 * weights + 6 * 6 * 3 * 20


def test_cost_counts_the_experts_that_a_token_goes_to() -> None:
    shape = {"num_layers": 3, "hidden_size": 8, "num_attention_heads": 4, "gated_linear_unit": True}
    experts = {"num_moe_experts": 6, "moe_router_topk": 2, "moe_ffn_hidden_size": 5, "add_bias_linear": False}
    widths = {1: 3 * 10, 2: 2 * 10 + 7, (0, 1, 0): 10 + 2 * 7}
    for freq, width in widths.items():
        layers = list(freq) if isinstance(freq, tuple) else freq
        routed = TransformerConfig(**shape, **experts, ffn_hidden_size=7, moe_layer_freq=layers)
        dense = TransformerConfig(**shape, ffn_hidden_size=1)
        assert training_cost(routed, 11)(1) - training_cost(dense, 11)(1) == 8 * 3 * (width - 3)
