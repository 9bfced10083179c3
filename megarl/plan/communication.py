"""Bytes that a rank sends in one optimizer step, by what asks for them.

Collectives are counted as rings, which send the least (Patarasuk and Yuan 2009, 'Bandwidth optimal all-reduce
algorithms'): of n bytes over r ranks an all-reduce sends 2 n (r - 1) / r, a gather and a scatter half that each.
"""

from megarl.plan.parameters import pieces
from megarl.plan.shape import Batch, Layout, Numerics, Shape

_FP32 = 4


def step_bytes(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch, stage: int = 0) -> dict[str, int]:
    """What a rank of a stage sends, by part, for `batch.count` micro-batches and the reduction after them."""
    layers = len(layout.layers_of(stage, shape.layers))
    routed = sum(shape.has_experts(layer) for layer in layout.layers_of(stage, shape.layers))
    volumes = {
        "tensor": layers * _tensor_layer(shape, layout, numerics, batch)
        + _tensor_ends(shape, layout, numerics, batch, stage),
        "pipeline": _pipeline(shape, layout, numerics, batch, stage),
        "context": layers * _context_layer(shape, layout, numerics, batch),
        "expert": routed * _expert_layer(shape, layout, numerics, batch),
    }
    volumes = {part: volume * batch.count for part, volume in volumes.items()}
    return volumes | {
        "data": data_bytes(shape, layout, numerics, stage),
        "shared embedding": _shared_embedding(shape, layout, numerics, stage),
    }


def data_bytes(shape: Shape, layout: Layout, numerics: Numerics, stage: int = 0) -> int:
    """The reduction of gradients over replicas: an all-reduce; or, with the distributed optimizer, a scatter of the
    gradients and a gather of the weights, which is as much where both have one format (arXiv:1910.02054, section 7.1).
    """
    total = 0
    found = pieces(shape, layout, stage)
    for is_expert, replicas in ((False, layout.replicas), (True, layout.expert_replicas)):
        elements = sum(piece.elements for piece in found if piece.expert == is_expert)
        twice = numerics.gradient + (numerics.compute if layout.distributed_optimizer else numerics.gradient)
        total += _share(elements * twice, replicas)
    return total


def _share(size: int, ranks: int) -> int:
    """A gather or a scatter of `size` bytes."""
    return size * (ranks - 1) // ranks


def _hidden(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch) -> int:
    return batch.rank_tokens(layout) * shape.hidden * numerics.compute


def _passes(numerics: Numerics) -> int:
    """Forward passes of a layer."""
    return 2 if numerics.recompute == "full" else 1


def _tensor_layer(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch) -> int:
    """Two all-reduces forward and two backward (arXiv:1909.08053, section 3); or, with sequence parallelism, two
    gathers and two scatters each way and two gathers more, of inputs that are kept split (arXiv:2205.05198, 4.2.2).
    """
    size = _hidden(shape, layout, numerics, batch)
    again = 2 if layout.sequence else 0
    total = (4 * _passes(numerics) + 4 + again) * _share(size, layout.tensor)
    if shape.groups < layout.tensor:
        # ranks that share a group gather query, key and value
        qkv = batch.rank_tokens(layout) * shape.qkv * numerics.compute
        total += (_passes(numerics) + 1) * _share(qkv, layout.tensor)
    return total


def _tensor_ends(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch, stage: int) -> int:
    """The embedding's sum; at the other end the gradient of what the output layer reads, of the trained tokens or, with
    sequence parallelism, of all, and the log-probs' four fp32 numbers a trained token."""
    hidden = _hidden(shape, layout, numerics, batch)
    total = 2 * _share(hidden, layout.tensor) if stage == 0 else 0
    if stage == layout.pipeline - 1:
        read = hidden if layout.sequence else batch.trained * shape.hidden * numerics.head
        total += 2 * _share(read + batch.trained * 4 * _FP32, layout.tensor)
    return total


def _pipeline(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch, stage: int) -> int:
    """Hidden states to the next stage, their gradient to the one before, once for each chunk of an interleaved one."""
    if layout.pipeline == 1:
        return 0
    chunks = layout.virtual
    forward = chunks - (stage == layout.pipeline - 1)
    backward = chunks - (stage == 0)
    states = batch.rank_tokens(layout) * shape.hidden * numerics.residual // layout.token_ranks
    return (forward + backward) * states


def _context_layer(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch) -> int:
    """Keys and values are gathered, their gradients scattered."""
    groups = max(1, shape.groups // layout.tensor) * shape.head_dim
    whole = batch.rows * batch.tokens * 2 * groups * numerics.compute
    return (_passes(numerics) + 1) * _share(whole, layout.context)


def _expert_layer(shape: Shape, layout: Layout, numerics: Numerics, batch: Batch) -> int:
    """Tokens to their experts and back, forward and backward, spread evenly over the ranks."""
    copies = _hidden(shape, layout, numerics, batch) // layout.token_ranks * shape.experts_per_token
    return 2 * (_passes(numerics) + 1) * _share(copies, layout.expert * layout.expert_tensor)


def _shared_embedding(shape: Shape, layout: Layout, numerics: Numerics, stage: int) -> int:
    """The gradients of embedding and output layer are added up where they are one weight on two stages."""
    if not shape.tied or layout.pipeline == 1 or stage not in (0, layout.pipeline - 1):
        return 0
    shared = next(piece.size for piece in pieces(shape, layout, stage) if piece.shared)
    return 2 * _share(shared * numerics.gradient, 2)
