"""Bytes that the forward pass keeps for the backward pass, tensor by tensor.

Korthikanti et al. (arXiv:2205.05198, sections 4 and 5) count them for a layer with dropout, GELU and stored attention
scores. The same count is made here for what this package runs: RMSNorm, grouped-query attention that keeps its
log-sum-exp in place of the scores (Dao et al., arXiv:2205.14135), SwiGLU of separate operations.
"""

import math

from megarl.plan.parameters import padded_vocabulary
from megarl.plan.shape import Batch, Layout, Numerics, Shape

_FP32 = 4
CHUNK_BYTES = 128 * 2**20
"""Of one fp32 copy of a chunk's logits on a CPU. A test holds this and the next equal to the names in
`megarl.megatron.log_probs`."""
GPU_CHUNK_TOKENS = 1024
CHUNK_COPIES = 2


def layer_bytes(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch, *, experts: bool = False) -> int:
    """What one layer keeps for one micro-batch, without recomputation."""
    feed_forward = _experts if experts else _dense
    return _attention(shape, layout, numerics, batch) + feed_forward(shape, layout, numerics, batch)


def stage_bytes(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch, stage: int = 0) -> int:
    """What a stage keeps for one micro-batch, up to the last norm.

    Under full recomputation that is one layer's input for every `recompute_layers`.
    """
    numbers = layout.layers_of(stage, shape.layers)
    tokens = batch.rank_tokens(layout)
    # int64 ids, and which of them another tensor rank holds
    total = tokens * (8 if layout.tensor == 1 else 9) if stage == 0 else 0
    if numerics.recompute == "full":
        inputs = math.ceil(len(numbers) / numerics.recompute_layers)
        return total + inputs * tokens // layout.token_ranks * shape.hidden * numerics.residual
    spared = _core_attention(shape, layout, numerics, batch) if numerics.recompute == "core_attention" else 0
    return total + sum(
        layer_bytes(shape, layout, numerics, batch, experts=shape.has_experts(number)) - spared for number in numbers
    )


def recomputed_bytes(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch, stage: int = 0) -> int:
    """What a stage's backward pass holds beside that, of the layers that it runs again; the head's is gone by then."""
    if numerics.recompute == "none":
        return 0
    if numerics.recompute == "core_attention":
        return _core_attention(shape, layout, numerics, batch)
    layers = [
        layer_bytes(shape, layout, numerics, batch, experts=shape.has_experts(number))
        for number in layout.layers_of(stage, shape.layers)
    ]
    size = numerics.recompute_layers
    group = max((sum(layers[begin : begin + size]) for begin in range(0, len(layers), size)), default=0)
    # the group's input is kept anyway, unless the local norm copies it into fp32; the rotation's angles are kept too
    is_copied = numerics.residual != _FP32 and not numerics.fused_norm
    shared = 0 if is_copied else batch.rank_tokens(layout) // layout.token_ranks * shape.hidden * numerics.residual
    return group - shared + _positions(layout, batch) * shape.head_dim * _FP32


def in_flight(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch, stage: int = 0) -> int:
    """What a stage keeps for all micro-batches that are under way at once.

    Under 1F1B stage s of p has p - s of them (Narayanan et al., arXiv:2104.04473, section 2.2). An interleaved pipeline
    of v chunks a stage has 2 (p - s - 1) + (v - 1) p + 1 chunks, which on the first stage is the 1 + (p - 1) / (p v) of
    arXiv:2205.05198, section 4.2.3.
    """
    later = layout.pipeline - stage - 1
    chunks = later + 1 if layout.virtual == 1 else 2 * later + (layout.virtual - 1) * layout.pipeline + 1
    chunks = min(chunks, batch.count * layout.virtual)
    return stage_bytes(shape, layout, numerics, batch, stage) * chunks // layout.virtual


def head_bytes(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch) -> int:
    """What the output layer's loss keeps on the last stage, for one micro-batch.

    What the last norm keeps; the trained tokens' hidden states, or their gradient; the weight's gradient, in fp32 and,
    where that is another format, in the weight's; and the weight's copy for a product in another format than its own.
    """
    norm = _norm(shape, numerics, batch.rank_tokens(layout) // layout.token_ranks, feeds_linear=False)
    weight = _columns(shape, layout) * shape.hidden
    copies = _FP32 if numerics.compute == _FP32 else _FP32 + numerics.compute
    copies += numerics.head if numerics.head != numerics.compute else 0
    return norm + batch.trained * shape.hidden * numerics.head + weight * copies


def logits_bytes(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch) -> int:
    """What comes and goes while the loss is formed: all tokens' hidden states, and a chunk's logits in fp32.

    The larger of a CPU's, of which there are two, and a GPU's larger chunk, which its kernels overwrite.
    """
    token = _columns(shape, layout) * _FP32
    on_cpu = CHUNK_COPIES * min(CHUNK_BYTES, batch.trained * token)
    on_gpu = min(GPU_CHUNK_TOKENS, batch.trained) * token
    return batch.rank_tokens(layout) * shape.hidden * numerics.compute + max(on_cpu, on_gpu)


def whole_logits(sequences: int, tokens: int, vocab: int, *, number: int = _FP32, copies: int = 2) -> int:
    """Bytes of logits [sequences, tokens, vocab] that are held whole: the tensor and its gradient."""
    return sequences * tokens * vocab * number * copies


def _columns(shape: Shape, layout: Layout) -> int:
    """Of the vocabulary, on one tensor rank."""
    return padded_vocabulary(shape.vocab, layout.tensor) // layout.tensor


def _positions(layout: Layout, batch: Batch) -> int:
    """Rows side by side share them."""
    return batch.rank_tokens(layout) if batch.packed else batch.tokens // layout.context


def _norm(shape: Shape, numerics: Numerics, tokens: int, *, feeds_linear: bool = True) -> int:
    """The input, the normalised input and the inverse root; then the output, which the linear layer keeps."""
    copies = numerics.compute if numerics.fused_norm else 2 * _FP32
    return tokens * (shape.hidden * (copies + (numerics.compute if feeds_linear else 0)) + _FP32)


def _attention(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch) -> int:
    tokens, number = batch.rank_tokens(layout), numerics.compute
    heads = shape.heads // layout.tensor * shape.head_dim
    groups = max(1, shape.groups // layout.tensor) * shape.head_dim
    total = _norm(shape, numerics, tokens // layout.token_ranks)
    # query after the rotation, and the output, which the projection keeps too
    total += tokens * 2 * heads * number
    if layout.context > 1:
        # keys and values of the whole sequence
        total += tokens * layout.context * 2 * groups * number
    else:
        # keys after the rotation; the values keep the buffer that they are a view of: query, key and value, which
        # tensor ranks that share a group hold whole
        buffer = shape.qkv if shape.groups < layout.tensor else shape.qkv // layout.tensor
        total += tokens * (groups + buffer) * number
    if shape.qk_norm:
        total += tokens * (heads + groups) * (number if numerics.fused_norm else 2 * _FP32)
    # sines and cosines, of query and key
    total += 4 * _positions(layout, batch) * shape.head_dim * number
    return total + _core_attention(shape, layout, numerics, batch)


def _core_attention(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch) -> int:
    """What only the attention itself keeps: log-sum-exps, each packed sequence's output, the mask of unlike rows."""
    tokens = batch.rank_tokens(layout)
    heads = shape.heads // layout.tensor
    total = tokens * heads * _FP32
    if batch.packed:
        total += tokens * heads * shape.head_dim * numerics.compute
    if layout.context > 1:
        total += _positions(layout, batch) * batch.longest * numerics.compute
    return total


def _dense(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch) -> int:
    tokens = batch.rank_tokens(layout)
    # gate and up, silu(gate), up + offset, their product
    return _norm(shape, numerics, tokens // layout.token_ranks) + (
        tokens * 5 * (shape.ffn // layout.tensor) * numerics.compute
    )


def _experts(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch) -> int:
    """By formula: each token's copies as sent to their experts and as they come back, evenly spread."""
    tokens = batch.rank_tokens(layout)
    own = tokens // layout.token_ranks
    copies = own * shape.experts_per_token * layout.expert_tensor
    total = _norm(shape, numerics, own)
    # router: logits and probabilities
    total += own * 2 * shape.experts * _FP32
    return total + copies * (2 * shape.hidden + 5 * (shape.expert_ffn // layout.expert_tensor)) * numerics.compute
