"""A micro-batch as the routers of this rank's layers see it."""

import torch
from megatron.core import parallel_state
from torch import Tensor

from megarl.megatron.batch import TrainBatch
from megarl.megatron.model_input import ModelInput
from megarl.megatron.routing import RoutingInput


def routing_input(batch: TrainBatch, inputs: ModelInput, sequence_parallel: bool) -> RoutingInput:
    """The routers' view of a micro-batch.

    Args:
        batch: the micro-batch.
        inputs: how this rank's model reads it.
        sequence_parallel: whether tensor-parallel ranks share its tokens between layers, and so between routers.
    """
    rows, width = batch.tokens_BT.shape
    # the model runs over [s, b, hidden], and sequence parallelism cuts s
    order_sb = torch.arange(inputs.tokens_bs.numel(), device=batch.tokens_BT.device).view(inputs.tokens_bs.shape).t()
    if sequence_parallel:
        size = parallel_state.get_tensor_model_parallel_world_size()
        order_sb = order_sb.chunk(size)[parallel_state.get_tensor_model_parallel_rank()]
    places_N = inputs.places_CN[inputs.context_rank][order_sb.flatten()]
    # rows that are laid out at their padded width have places for the padding too
    lengths_B = batch.lengths_B.to(places_N.device, non_blocking=True)
    is_read_BT = torch.arange(width, device=places_N.device) < lengths_B[:, None]
    is_token_N = torch.cat([is_read_BT.flatten(), is_read_BT.new_zeros(1)])[places_N]
    scale = (batch.total_tokens or 0) / max(batch.total_sequences or 0, 1)
    return RoutingInput(
        sequences_N=torch.where(is_token_N, places_N // width, -1),
        rows=rows,
        aux_scale=scale,
        experts_NLK=_at(batch.routed_experts_BTLK, places_N, -1),
        weights_NLK=_at(batch.routed_weights_BTLK, places_N, 0),
    )


def _at(values_BTLK: Tensor | None, places_N: Tensor, padding: int) -> Tensor | None:
    if values_BTLK is None:
        return None
    flat = values_BTLK.flatten(0, 1)
    return torch.cat([flat, flat.new_full((1, *flat.shape[1:]), padding)])[places_N]
