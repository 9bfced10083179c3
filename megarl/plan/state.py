"""Bytes that a trained model holds all the time: weights, gradient buffers, optimizer state."""

import math
from dataclasses import dataclass

from megarl.plan.parameters import Piece, pieces
from megarl.plan.shape import Layout, Numerics, Shape

_PIECE_ALIGNMENT, _BUCKET_ALIGNMENT = 64, 128
"""Elements: `_ParamAndGradBuffer` in megatron.core.distributed, with the distributed optimizer."""


@dataclass(frozen=True)
class State:
    """Bytes on one rank."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer


def trained_state(
    shape: Shape, layout: Layout, numerics: Numerics, stage: int = 0, *, value_head: bool = False
) -> State:
    """What Megatron-core's DDP and Adam hold for a stage once a step was made.

    Gradients lie in one buffer of `numerics.gradient` bytes an element, whatever the weights' format. Adam has two
    fp32 moments and, for weights of fewer bits, an fp32 copy: 16 bytes a parameter in fp32 and 18 in bf16. The
    distributed optimizer shares moments and copy over the replicas (ZeRO stage 1, arXiv:1910.02054, section 5.1), and
    moves the weights into a padded buffer of their own.
    """
    found = pieces(shape, layout, stage, value_head=value_head)
    total = State(0, 0, 0)
    for is_expert, replicas in ((False, layout.replicas), (True, layout.expert_replicas)):
        of_kind = [piece for piece in found if piece.expert == is_expert]
        elements = sum(piece.elements for piece in of_kind)
        shared = 1
        if layout.distributed_optimizer:
            elements, shared = _padded(of_kind, replicas), replicas
        total = State(
            weights=total.weights + elements * numerics.compute,
            gradients=total.gradients + elements * numerics.gradient,
            optimizer=total.optimizer + elements * numerics.optimizer // shared,
        )
    return total


def frozen_weights(shape: Shape, layout: Layout, numerics: Numerics, stage: int = 0) -> int:
    """Bytes of a model that only scores."""
    return sum(piece.elements for piece in pieces(shape, layout, stage)) * numerics.compute


def _padded(found: list[Piece], replicas: int) -> int:
    """Elements of the buffer: pieces in reverse order, each aligned; buckets divide by the replicas.

    The weight that embedding and output layer share has a bucket of its own. No more buckets are counted than without
    overlapped reduction; each further one adds under max(replicas, 128) elements.
    """
    multiple = math.lcm(replicas, _BUCKET_ALIGNMENT)
    end, in_bucket = 0, False
    for piece in reversed(found):
        if piece.shared and in_bucket:
            end = _up(end, multiple)
        # where every piece begins at a multiple, so that the order of an expert's two tensors adds nothing
        end = _up(end, _PIECE_ALIGNMENT) + (piece.copies - 1) * _up(piece.size, _PIECE_ALIGNMENT) + piece.size
        in_bucket = not piece.shared
        if piece.shared:
            end = _up(end, multiple)
    return _up(end, multiple)


def _up(size: int, multiple: int) -> int:
    return math.ceil(size / multiple) * multiple
