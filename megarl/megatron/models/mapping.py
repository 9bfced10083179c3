"""How one Megatron-core parameter is made of Hugging Face tensors, and back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megarl.config.model import ModelConfig


@dataclass(frozen=True)
class Mapping:
    """One parameter's pair of conversions, on full (unsharded) tensors.

    Attributes:
        hf_names: the Hugging Face tensors, in the order that `merge` takes and `split` gives.
        merge: Hugging Face tensors to the Megatron-core parameter.
        split: the inverse.
        stacked: parts that are stacked along the tensor-parallel dimension and sharded one by one (gate and up).
        is_vocabulary: whether the first dimension is the vocabulary, which Megatron-core pads.
    """

    hf_names: tuple[str, ...]
    merge: Callable[[Sequence[Tensor]], Tensor]
    split: Callable[[Tensor], list[Tensor]]
    stacked: int = 1
    is_vocabulary: bool = False


def copied(hf_name: str, *, is_vocabulary: bool = False) -> Mapping:
    """A parameter that is the same tensor on both sides."""
    return Mapping((hf_name,), lambda parts: parts[0], lambda full: [full], is_vocabulary=is_vocabulary)


def gate_up(gate_name: str, up_name: str) -> Mapping:
    """SwiGLU's first linear layer: Megatron-core stacks gate over up."""
    return Mapping((gate_name, up_name), lambda parts: torch.cat(tuple(parts)), lambda full: list(full.chunk(2)), 2)


def query_key_value(names: tuple[str, str, str], model: ModelConfig) -> Mapping:
    """The fused projection: Megatron-core holds, for each key-value group, its queries, its key and its value."""
    groups, head = model.num_query_groups, model.head_dim
    rows = (model.num_attention_heads // groups * head, head, head)

    def merge(parts: Sequence[Tensor]) -> Tensor:
        grouped = [part.reshape(groups, size, *part.shape[1:]) for part, size in zip(parts, rows, strict=True)]
        return torch.cat(grouped, dim=1).flatten(0, 1)

    def split(full: Tensor) -> list[Tensor]:
        grouped = full.reshape(groups, sum(rows), *full.shape[1:])
        return [part.flatten(0, 1) for part in grouped.split(rows, dim=1)]

    return Mapping(names, merge, split)
