"""The parameter tensors of one rank, in the order in which Megatron-core's GPTModel registers them, but for experts."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from megarl.plan.shape import Layout, Shape

PARTS = ("embedding", "attention", "mlp", "experts", "head")
"""Norms belong to what they feed: a layer's to its attention or feed-forward layer, the last one to the head."""


@dataclass(frozen=True)
class Piece:
    """A parameter tensor on one rank, or several of one size.

    Attributes:
        part: one of `PARTS`.
        size: its elements on this rank.
        copies: how many there are.
        expert: whether it is sharded over expert-parallel ranks.
        shared: whether it is the weight that embedding and output layer share.
    """

    part: str
    size: int
    expert: bool = False
    shared: bool = False
    copies: int = 1

    @property
    def elements(self) -> int:
        """Of all copies."""
        return self.size * self.copies


def padded_vocabulary(vocab: int, tensor: int) -> int:
    """Rows of the embedding over all tensor ranks."""
    return math.ceil(vocab / tensor) * tensor


def pieces(shape: Shape, layout: Layout, stage: int = 0, *, value_head: bool = False) -> list[Piece]:
    """The parameters of a rank of a pipeline stage.

    Args:
        shape: the model.
        layout: the ranks.
        stage: counted from 0.
        value_head: whether the output layer is a critic's, which gives one number and is not split.
    """
    tied = shape.tied and not value_head
    vocabulary = padded_vocabulary(shape.vocab, layout.tensor) // layout.tensor * shape.hidden
    is_first, is_last = stage == 0, stage == layout.pipeline - 1
    found = [Piece("embedding", vocabulary, shared=tied)] if is_first else []
    for layer in layout.layers_of(stage, shape.layers):
        found += _attention(shape, layout)
        found += _experts(shape, layout) if shape.has_experts(layer) else _dense("mlp", shape.hidden, shape.ffn, layout)
    if is_last:
        found.append(Piece("head", shape.hidden))
        if value_head:
            found += [Piece("head", shape.hidden), Piece("head", 1)]
        elif not (tied and is_first):
            found.append(Piece("head", vocabulary, shared=tied))
    return found


def by_part(found: list[Piece]) -> dict[str, int]:
    """Elements of each part."""
    return {part: sum(piece.elements for piece in found if piece.part == part) for part in PARTS}


@cache
def whole_model(shape: Shape) -> dict[str, int]:
    """Elements of each part of the model, each once and without what pads the vocabulary. Not to be changed."""
    return by_part(pieces(shape, Layout()))


def _attention(shape: Shape, layout: Layout) -> Iterator[Piece]:
    heads = shape.heads * shape.head_dim
    sizes = [shape.hidden * heads // layout.tensor, shape.qkv // layout.tensor * shape.hidden]
    sizes += [shape.qkv // layout.tensor] if shape.qkv_bias else []
    sizes += [shape.hidden]
    sizes += [shape.head_dim] * 2 if shape.qk_norm else []
    return (Piece("attention", size) for size in sizes)


def _dense(part: str, hidden: int, ffn: int, layout: Layout) -> list[Piece]:
    share = ffn // layout.tensor * hidden
    return [Piece(part, 2 * share), Piece(part, hidden), Piece(part, share)]


def _experts(shape: Shape, layout: Layout) -> list[Piece]:
    """The norm, the router and this rank's experts."""
    found = [Piece("experts", shape.hidden), Piece("experts", shape.experts * shape.hidden)]
    share = shape.expert_ffn // layout.expert_tensor * shape.hidden
    own = shape.experts // layout.expert
    return found + [Piece("experts", size * share, expert=True, copies=own) for size in (2, 1)]
