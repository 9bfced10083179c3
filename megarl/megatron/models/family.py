"""What the trainer asks of a model family; each family is a module of this shape."""

from collections.abc import Iterator
from typing import Any, Protocol

from transformers import PretrainedConfig

from megarl.config.model import ModelConfig
from megarl.megatron.models.mapping import Mapping

TensorShape = tuple[str, tuple[int, ...], float]
"""A Hugging Face tensor: its name, its shape, and the standard deviation of its random initialisation.

A standard deviation of 0 marks a bias (zeros), -1 a norm (ones).
"""


class Family(Protocol):
    """One family's differences from the others."""

    def transformer_options(self, model: ModelConfig) -> dict[str, Any]:
        """Keys of Megatron-core's TransformerConfig in which the family differs."""

    def mapping(self, name: str, model: ModelConfig) -> Mapping:
        """The conversion of one parameter.

        Args:
            name: Megatron-core's name, with the layer's number counted over all pipeline stages.
            model: its shape.

        Raises:
            KeyError: the family has no such parameter.
        """

    def hf_config(self, model: ModelConfig, vocab_size: int) -> PretrainedConfig:
        """The configuration that transformers, vLLM and SGLang build the same network from."""

    def tensor_shapes(self, model: ModelConfig, vocab_size: int) -> Iterator[TensorShape]:
        """Every Hugging Face tensor of the network."""
