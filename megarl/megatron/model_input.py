"""What the model reads of a micro-batch on this rank, and the way back from its positions to the batch's rows.

Sequences lie in rows of one width, or packed end to end (Megatron-core's 'thd'). Under context parallelism each rank
reads two of the chunks that a sequence is cut into. An objective sees neither: per-token results are brought back into
[B, T] on every context-parallel rank, whole responses with it.
"""

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from megarl.config.model import ParallelConfig
from megarl.megatron.batch import TrainBatch
from megarl.megatron.micro_batches import aligned_length
from megarl.megatron.routing import RoutingInput
from megarl.platform.layers.zigzag import owners


@dataclass(frozen=True)
class ModelInput:
    """One micro-batch as this rank's model reads it; N = b * s tokens.

    Attributes:
        tokens_bs: int64 token ids, 0 where there is padding only.
        positions_bs: int64 positions within each sequence.
        packed: the sequences' bounds where they are packed, over all context-parallel ranks.
        places_CN: int64, for each context-parallel rank the place of each of its tokens in the flattened [B, T] of the
            batch; B * T for padding.
        context_rank: which of those ranks this is.
        shape: B and T.
        routing: what the routers are told of it, in a model with experts.
    """

    tokens_bs: Tensor
    positions_bs: Tensor
    packed: PackedSeqParams | None
    places_CN: Tensor
    context_rank: int
    shape: torch.Size
    routing: RoutingInput | None = None

    def take(self, values_BT: Tensor) -> Tensor:
        """This rank's part of a tensor over the batch, [N]; 0 or False for padding."""
        with_padding = torch.cat([values_BT.flatten(), values_BT.new_zeros(1)])
        return with_padding[self.places_CN[self.context_rank]]

    def trained(self, mask_BT: Tensor) -> Tensor:
        """Which of this rank's tokens the mask holds, int64 [M], rising.

        Waits for the device, as every indexing by a mask does; what is indexed by these numbers does not.
        """
        return self.take(mask_BT).nonzero()[:, 0]

    def bring_back(self, *values_N: Tensor) -> tuple[Tensor, ...]:
        """Values of this rank's tokens as [B, T] each, whole on every context-parallel rank. Collective over those.

        NaN where no rank has a token. The gradient flows to this rank's own tokens alone, for each rank forms the same
        loss of all of them and Megatron-core adds the ranks' gradients up.
        """
        size = self.shape.numel()
        flat_KP = values_N[0].new_full((len(values_N), size + 1), float("nan"))
        if len(self.places_CN) > 1:
            own_KN = torch.stack([values.detach() for values in values_N])
            held_by_rank = [torch.empty_like(own_KN) for _ in self.places_CN]
            dist.all_gather(held_by_rank, own_KN, group=parallel_state.get_context_parallel_group())
            for places_N, held_KN in zip(self.places_CN, held_by_rank, strict=True):
                flat_KP[:, places_N] = held_KN
        own_N = self.places_CN[self.context_rank]
        # one by one, so that a value which the loss does not read costs no gradient
        whole = (flat.index_copy(0, own_N, values) for flat, values in zip(flat_KP, values_N, strict=True))
        return tuple(flat[:size].view(self.shape) for flat in whole)


def model_input(batch: TrainBatch, sequence_parallel: bool = False, token_alignment: int = 1) -> ModelInput:
    """Lays a micro-batch out for this rank's model: packed where it says so, else padded.

    Args:
        batch: the micro-batch, the same on all ranks of a tensor-, pipeline- and context-parallel group.
        sequence_parallel: whether tensor-parallel ranks share a sequence's tokens between layers.
        token_alignment: see `ParallelConfig.token_multiple`.
    """
    size, rank = parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()
    tensor = parallel_state.get_tensor_model_parallel_world_size() if sequence_parallel else 1
    parallel = ParallelConfig(tensor=tensor, context=size, sequence=sequence_parallel)
    multiple = parallel.token_multiple(token_alignment)
    rows, width = batch.tokens_BT.shape
    if batch.packed_tokens is None:
        segments = [aligned_length(width, multiple)] * rows
        lengths = [width] * rows
    else:
        lengths = batch.lengths_B.tolist()
        segments = [aligned_length(length, multiple) for length in lengths]
        if padding := batch.packed_tokens - sum(segments):
            segments.append(padding)
            lengths.append(0)
    places_P, positions_P, segment_of_P = _stream(lengths, segments, width, rows)
    owner_P = owners(positions_P, torch.tensor(segments)[segment_of_P], size)
    order_CN = torch.stack([(owner_P == other).nonzero()[:, 0] for other in range(size)])
    device = batch.tokens_BT.device
    shape = (1, -1) if batch.packed_tokens is not None else (rows, -1)
    laid_out = ModelInput(
        tokens_bs=batch.tokens_BT,
        positions_bs=positions_P[order_CN[rank]].view(shape).to(device),
        packed=None if batch.packed_tokens is None else _bounds(segments, device),
        places_CN=places_P[order_CN].to(device),
        context_rank=rank,
        shape=batch.tokens_BT.shape,
    )
    return replace(laid_out, tokens_bs=laid_out.take(batch.tokens_BT).view(shape))


def _stream(lengths: list[int], segments: list[int], width: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Segments end to end: each token's place in the flattened batch, position in its segment, and segment."""
    size = torch.tensor(segments)
    segment_of_P = torch.repeat_interleave(torch.arange(len(segments)), size)
    positions_P = torch.arange(int(size.sum())) - (size.cumsum(0) - size)[segment_of_P]
    is_token_P = positions_P < torch.tensor(lengths)[segment_of_P]
    return torch.where(is_token_P, segment_of_P * width + positions_P, rows * width), positions_P, segment_of_P


def _bounds(segments: list[int], device: torch.device) -> PackedSeqParams:
    """Megatron-core's bounds. A segment's padding comes after its tokens, where causality hides it."""
    ends = torch.tensor([0, *segments]).cumsum(0).to(device=device, dtype=torch.int32)
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        max_seqlen_q=max(segments),
        max_seqlen_kv=max(segments),
    )
