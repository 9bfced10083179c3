"""Core attention on torch's scaled_dot_product_attention, under TEDotProductAttention's contract."""

import contextlib
import itertools
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region, get_cuda_rng_tracker
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from megarl.platform.layers.zigzag import check_divides, natural_order, query_positions

_CAUSAL = (AttnMaskType.causal, AttnMaskType.padding_causal, AttnMaskType.causal_bottom_right)


class CoreAttention(MegatronModule):  # type: ignore[misc]
    """softmax(q k^T * scale) v with grouped queries, packed sequences and context parallelism.

    Causal masks and no mask are built from the layout, so `attention_mask` is not read. Under context parallelism
    each rank holds the chunks r and 2C-1-r of every sequence (Megatron's zigzag); keys and values are gathered over
    the context-parallel ranks, and their gradients reduce-scattered.

    Args:
        config: Megatron's TransformerConfig.
        layer_number: from 1; unused.
        attn_mask_type: causal, padding_causal, causal_bottom_right or no_mask.
        attention_type: unused.
        attention_dropout: probability; the config's where None.
        softmax_scale: factor of the scores; 1/sqrt(head size) where None.
        cp_comm_type: unused: there is one way here.
        pg_collection: Megatron's process groups, read for `cp`.

    Raises:
        ValueError: the config asks for a sliding window or a softmax that this module does not have.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        if config.window_size is not None:
            raise ValueError(f"window_size={config.window_size} needs Transformer Engine; set it to None.")
        if config.softmax_type != "vanilla":
            raise ValueError(f"softmax_type={config.softmax_type!r} needs Transformer Engine; use 'vanilla'.")
        self.attn_mask_type = attn_mask_type
        self.scale = softmax_scale
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        has_group = pg_collection is not None and hasattr(pg_collection, "cp")
        self.cp_group = pg_collection.cp if has_group else parallel_state.get_context_parallel_group()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
        **_: Any,
    ) -> Tensor:
        """Attends within each sequence.

        Args:
            query: [s, b, n, h], or [t, n, h] where packed; this rank's tokens, any floating dtype.
            key: [s_k, b, g, h] or [t, g, h], with n a multiple of g; s_k > s while decoding with a cache.
            value: [s_k, b, g, h_v] or [t, g, h_v].
            attention_mask: not read.
            attn_mask_type: in place of the constructor's where given.
            attention_bias: must be None.
            packed_seq_params: Megatron's PackedSeqParams; 'thd' gives the sequences' bounds over all ranks.

        Returns:
            [s, b, n * h_v], or [t, n * h_v] where packed.

        Raises:
            ValueError: a mask or bias that is not supported, or a sequence that does not divide by 2 * cp.
        """
        kind = self.attn_mask_type if attn_mask_type is None else attn_mask_type
        if attention_bias is not None or kind not in (*_CAUSAL, AttnMaskType.no_mask):
            raise ValueError(f"CoreAttention has causal masks or none, and no bias; it was asked for {kind.name}.")
        packed = packed_seq_params is not None and packed_seq_params.qkv_format == "thd"
        if packed:
            _check_packed(query, key, packed_seq_params)
            query, key, value = (x.unsqueeze(1) if x.dim() == 3 else x for x in (query, key, value))
        ranks = self.cp_group.size()
        bounds = _bounds(packed_seq_params, query.size(0) * ranks) if packed else [0, query.size(0) * ranks]
        if ranks > 1:
            key, value = (_gather(x, self.cp_group) for x in (key, value))
        parts = []
        for start, end in itertools.pairwise(bounds):
            rows = slice(start // ranks, end // ranks)
            if ranks > 1:
                check_divides(end - start, ranks)
                k, v = (natural_order(x, rows) for x in (key, value))
            else:
                k, v = (key[rows], value[rows]) if packed else (key, value)
            parts.append(self._attend(query[rows], k, v, causal=kind in _CAUSAL))
        output = parts[0] if len(parts) == 1 else torch.cat(parts)
        return output.squeeze(1) if packed else output

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """One sequence (of a batch): this rank's queries against all keys in natural order."""
        mask = self._mask(query, key) if causal else None
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        dropout = self.dropout if self.training else 0.0
        # As DotProductAttention: dropout differs between tensor-parallel ranks, which hold different heads.
        forked = dropout > 0 and not self.config.sequence_parallel
        with get_cuda_rng_tracker().fork() if forked else contextlib.nullcontext():
            output = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=causal and mask is None,
                scale=self.scale,
                enable_gqa=True,
            )
        return output.permute(2, 0, 1, 3).flatten(2)

    def _mask(self, query: Tensor, key: Tensor) -> Tensor | None:
        """[s, s_k] bool, True where attended; None where torch's own causal flag says the same."""
        if self.cp_group.size() == 1 and query.size(0) == key.size(0):
            return None
        return torch.arange(key.size(0), device=query.device) <= self._positions(query, key)[:, None]

    def _positions(self, query: Tensor, key: Tensor) -> Tensor:
        """[s] int64, where this rank's queries stand among the keys."""
        ranks, rows, columns = self.cp_group.size(), query.size(0), key.size(0)
        if ranks == 1:
            return torch.arange(columns - rows, columns, device=query.device)
        return query_positions(columns, ranks, self.cp_group.rank(), query.device)


def _check_packed(query: Tensor, key: Tensor, packed: Any) -> None:
    if key.size(0) != query.size(0):
        raise ValueError(f"packed sequences have as many keys as queries here, not {key.size(0)} to {query.size(0)}.")
    if getattr(packed, "local_cp_size", None) is not None:
        raise ValueError("a context-parallel size per batch (local_cp_size) needs Transformer Engine; set it to None.")


def _bounds(packed: Any, tokens: int) -> list[int]:
    """Starts of the packed sequences in the layout over all ranks, and `tokens`, the end.

    Tokens after the last sequence are padding and make a sequence of their own.
    """
    starts = packed.cu_seqlens_q if packed.cu_seqlens_q_padded is None else packed.cu_seqlens_q_padded
    # dict.fromkeys drops the repeated bounds of empty sequences.
    return list(dict.fromkeys([*starts.tolist(), tokens]))


def _gather(x: Tensor, group: Any) -> Tensor:
    """[t, ...] of every context-parallel rank as [ranks, t, ...]."""
    gathered: Tensor = gather_from_sequence_parallel_region(x.contiguous(), group=group)
    return gathered.view(group.size(), *x.shape)
