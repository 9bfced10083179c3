"""The engine's routing of a step's rollouts, laid out on their batch."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from megarl.megatron.batch import TrainBatch
from megarl.rollout.routing import RoutedExperts


def with_routing(batch: TrainBatch, routing: Sequence[RoutedExperts | None]) -> TrainBatch:
    """The batch with the engine's expert ids, and with its gate weights where it gave them for all responses.

    Args:
        batch: the rollouts; position t reads token t of prompt and response.
        routing: of each response, over the tokens that were read.

    Raises:
        ValueError: no response has ids, or one has not the batch's number of tokens.
    """
    given = [each for each in routing if each is not None]
    if not given:
        raise ValueError("the engine gave no response's experts; rl.routing_replay needs an engine that does")
    rows, width = batch.tokens_BT.shape
    device = batch.tokens_BT.device
    experts_BTLK = torch.full((rows, width, *given[0].experts_TLK.shape[1:]), -1, dtype=torch.int16, device=device)
    weights_BTLK = torch.zeros(experts_BTLK.shape, device=device)
    for row, (each, length) in enumerate(zip(routing, batch.lengths_B.tolist(), strict=True)):
        if each is None:
            continue
        if len(each.experts_TLK) != length:
            raise ValueError(f"response {row} has {length} tokens to read, not {len(each.experts_TLK)}")
        experts_BTLK[row, :length] = each.experts_TLK.to(device)
        if each.weights_TLK is not None:
            weights_BTLK[row, :length] = each.weights_TLK.to(device)
    has_weights = all(each.weights_TLK is not None for each in given)
    return replace(
        batch,
        routed_experts_BTLK=experts_BTLK,
        routed_weights_BTLK=weights_BTLK if has_weights else None,
    )
