"""The engine's routing of a step's rollouts, laid out on their batch."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from megarl.config.errors import UserError
from megarl.megatron.batch import TrainBatch
from megarl.rollout.routing import RoutedExperts


def with_routing(batch: TrainBatch, routing: Sequence[RoutedExperts | None], replay: str = "experts") -> TrainBatch:
    """The batch with the engine's expert ids, and with its gate weights where it gave them for all responses.

    Args:
        batch: the rollouts; position t reads token t of prompt and response.
        routing: of each response, over the tokens that were read.
        replay: rl.routing_replay.

    Raises:
        UserError: no response has ids, or the recipe replays gate weights and a response with ids has none.
        ValueError: a response's ids are not of the batch's number of tokens.
    """
    given = [each for each in routing if each is not None]
    if not given:
        raise UserError(
            f"rl.routing_replay={replay} needs expert ids, and the engine gave none; set it to none or take an engine "
            "that gives them."
        )
    has_weights = all(each.weights_TLK is not None for each in given)
    if replay == "weights" and not has_weights:
        raise UserError(
            "rl.routing_replay=weights needs gate weights, and the engine gave expert ids alone; set it to experts."
        )
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
    return replace(
        batch,
        routed_experts_BTLK=experts_BTLK,
        routed_weights_BTLK=weights_BTLK if has_weights else None,
    )
