"""What the arithmetic is over: a model's shape, its layout over ranks, its number formats and a micro-batch."""

import math
from dataclasses import dataclass
from typing import Literal

Recompute = Literal["none", "core_attention", "full"]


@dataclass(frozen=True)
class Shape:
    """A GPT with RMSNorm, grouped-query attention and SwiGLU, no biases but that of query, key and value.

    Attributes:
        layers: transformer layers.
        hidden: width of the residual stream.
        ffn: width of a dense feed-forward layer.
        heads: query heads.
        groups: key-value heads.
        head_dim: size of one head.
        vocab: tokens.
        tied: whether the output layer shares the embedding's weight.
        qkv_bias: whether query, key and value have a bias.
        qk_norm: whether query and key are normalised, a weight of `head_dim` each.
        experts: routed experts of a layer; 0 for a dense model, and the rest is then not read.
        experts_per_token: experts that a token is sent to.
        expert_ffn: width of one expert.
        dense_layers: numbers, from 0, of the layers that have no experts.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int
    head_dim: int
    vocab: int
    tied: bool = True
    qkv_bias: bool = True
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 1
    expert_ffn: int = 0
    dense_layers: tuple[int, ...] = ()

    @property
    def qkv(self) -> int:
        """Channels of query, key and value together."""
        return (self.heads + 2 * self.groups) * self.head_dim

    def has_experts(self, layer: int) -> bool:
        """Whether a layer, counted from 0, routes its tokens to experts."""
        return self.experts > 0 and layer not in self.dense_layers


@dataclass(frozen=True)
class Layout:
    """How ranks share the model and the batch.

    Attributes:
        world: ranks.
        tensor: tensor-parallel size.
        sequence: whether tensor ranks share a sequence's tokens between layers.
        pipeline: stages.
        virtual: model chunks a stage, of an interleaved pipeline.
        context: ranks that share each sequence.
        expert: expert-parallel size.
        expert_tensor: tensor-parallel size of an expert.
        distributed_optimizer: whether data-parallel ranks share the optimizer's state (ZeRO stage 1).
        stage_layers: layers of each stage, where they are not even.
    """

    world: int = 1
    tensor: int = 1
    sequence: bool = False
    pipeline: int = 1
    virtual: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    distributed_optimizer: bool = False
    stage_layers: tuple[int, ...] | None = None

    @property
    def data(self) -> int:
        """Data-parallel size."""
        return self.world // (self.tensor * self.pipeline * self.context)

    @property
    def replicas(self) -> int:
        """Ranks that hold the same weights and add their gradients up: data- and context-parallel ones."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts."""
        return self.world // (self.pipeline * self.expert * self.expert_tensor)

    @property
    def token_ranks(self) -> int:
        """Tensor ranks that share the tokens between layers."""
        return self.tensor if self.sequence else 1

    def layers_of(self, stage: int, layers: int) -> range:
        """Numbers, from 0, of the layers that a stage holds; with virtual stages as many, though not these."""
        sizes = self.stage_layers or (math.ceil(layers / self.pipeline),) * self.pipeline
        begin = sum(sizes[:stage])
        return range(min(begin, layers), min(begin + sizes[stage], layers))


@dataclass(frozen=True)
class Numerics:
    """Bytes of a number, and what the backward pass computes anew.

    Attributes:
        compute: of weights and activations: 4 in fp32, 2 in bf16 and fp16.
        gradient: of the gradient buffers.
        fp32_head: whether the output layer's product is formed in fp32, of 16-bit weights and hidden states.
        fp32_residual: whether the residual stream is fp32.
        fused_norm: whether norms are Transformer Engine's, which keep their input and output; the local ones keep
            fp32 copies.
        recompute: what is run again in the backward pass: nothing, the core attention, or whole layers.
        recompute_layers: layers between two kept inputs, under 'full'.
    """

    compute: int = 4
    gradient: int = 4
    fp32_head: bool = False
    fp32_residual: bool = False
    fused_norm: bool = False
    recompute: Recompute = "none"
    recompute_layers: int = 1

    @property
    def head(self) -> int:
        """Of what the output layer's product is formed of."""
        return 4 if self.fp32_head else self.compute

    @property
    def residual(self) -> int:
        """Of the residual stream."""
        return 4 if self.fp32_residual else self.compute

    @property
    def optimizer(self) -> int:
        """Of Adam's two fp32 moments, and of the fp32 copy of a weight that has fewer bits."""
        return 8 if self.compute == 4 else 12


@dataclass(frozen=True)
class Batch:
    """The micro-batches of one optimizer step on one rank.

    Attributes:
        rows: sequences that the model reads side by side; 1 where they are packed.
        tokens: of a row, over all context-parallel ranks, padding included.
        longest: tokens of the longest sequence.
        trained: tokens of a micro-batch that have a loss, at most, on one context-parallel rank.
        count: micro-batches.
        packed: whether a row is sequences end to end.
    """

    rows: int
    tokens: int
    longest: int
    trained: int
    count: int = 1
    packed: bool = False

    def rank_tokens(self, layout: Layout) -> int:
        """Tokens that one context-parallel rank reads."""
        return self.rows * self.tokens // layout.context
