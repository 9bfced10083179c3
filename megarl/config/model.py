"""Recipe sections for the policy's shape, its tokenizer and its place on the machines."""

from dataclasses import dataclass, field
from math import lcm
from typing import Optional

from megarl.config.fields import LONGEST_S, key
from megarl.config.moe import MoEConfig
from megarl.config.names import KNOWN_FAMILIES


@dataclass
class ModelConfig:
    """Shape of the policy. Megatron-core's GPTModel is built from it, and so is the engine's model."""

    family: str = key("qwen2", "Weight layout and architecture family.", choices=KNOWN_FAMILIES)
    num_layers: int = key(2, "Transformer layers.", low=1, high=10**4)
    hidden_size: int = key(64, "Width of the residual stream.", low=1)
    ffn_hidden_size: int = key(128, "Width of the SwiGLU feed-forward layer.", low=1)
    num_attention_heads: int = key(2, "Query heads.", low=1)
    num_query_groups: int = key(1, "Key-value heads (grouped-query attention).", low=1)
    head_dim: int = key(32, "Size of one head; vLLM's CPU kernels take 32, 64, 80, 96, 112, 128.", low=2)
    max_position_embeddings: int = key(128, "Context length, in tokens.", low=2)
    rope_theta: float = key(10000.0, "Base of the rotary embedding.", above=0)
    rope_scaling: str = key(
        "none",
        "Scaling of the rotary frequencies for long contexts: 'llama3' is that of Llama 3.1 and later.",
        choices=("none", "llama3"),
    )
    rope_scaling_factor: float = key(8.0, "By how much llama3 scaling slows the slow frequencies.", low=1)
    rope_low_freq_factor: float = key(
        1.0, "Frequencies of fewer turns over the original context than this are slowed in full.", above=0
    )
    rope_high_freq_factor: float = key(
        4.0, "Frequencies of more turns over the original context than this stay as they are.", above=0
    )
    rope_original_context: int = key(8192, "Context length before the scaling, in tokens.", low=1)
    norm_eps: float = key(1e-6, "RMSNorm epsilon.", above=0)
    tie_embeddings: bool = key(True, "Whether the output layer shares the embedding's weight.")
    embedding_init_std: float = key(0.02, "Standard deviation of the embedding at initialisation.", above=0)
    init_from: Optional[str] = key(
        None,
        "Folder in Hugging Face layout to start from; random weights if null. Its config.json gives the keys of the "
        "shape that the recipe leaves out.",
    )
    moe: MoEConfig = field(default_factory=MoEConfig)

    @property
    def has_dense_layers(self) -> bool:
        """Whether any layer is of the width `ffn_hidden_size`."""
        return self.moe.num_experts == 0 or len(self.moe.dense_layers) > 0

    @property
    def qkv_size(self) -> int:
        """Channels of query, key and value together."""
        return (self.num_attention_heads + 2 * self.num_query_groups) * self.head_dim


@dataclass
class TokenizerConfig:
    """How text becomes token ids."""

    kind: str = key(
        "characters",
        "'characters' builds a character tokenizer from the two keys below; 'hf' loads `path`.",
        choices=("characters", "hf"),
    )
    path: Optional[str] = key(None, "Folder of a Hugging Face tokenizer, for kind=hf.")
    alphabet: str = key("0123456789+-*=;()?ABCDE, #}", "Characters, one token each, for kind=characters.")
    words: list[str] = key(
        factory=lambda: ["\\boxed{"], doc="Strings of several characters that are one token, for kind=characters."
    )


@dataclass
class ParallelConfig:
    """How the trainer's processes share the model and the batch."""

    world_size: int = key(1, "Trainer processes; data parallelism is what the sizes below leave over.", low=1)
    tensor: int = key(1, "Tensor-parallel size.", low=1)
    sequence: bool = key(False, "Whether tensor ranks share a sequence's tokens between layers (sequence parallelism).")
    pipeline: int = key(1, "Pipeline-parallel size.", low=1)
    virtual: int = key(1, "Stages that each pipeline rank holds; above 1 the schedule interleaves them.", low=1)
    pipeline_layers: Optional[list[int]] = key(
        None, "Layers of each stage, in the order that they are run; null for the same number in all."
    )
    context: int = key(1, "Context-parallel size: ranks that share each sequence.", low=1)
    expert: int = key(1, "Expert-parallel size: ranks that a layer's experts are spread over.", low=1)
    expert_tensor: Optional[int] = key(
        None, "Tensor-parallel size of each expert; null for that of the other layers.", low=1
    )
    distributed_optimizer: bool = key(False, "Whether data-parallel ranks share the optimizer's state (ZeRO-1).")
    recompute: str = key(
        "none",
        "Activations that the backward pass forms anew: none, those of the core attention, or all of a layer.",
        choices=("none", "selective", "full"),
    )
    threads: int = key(1, "CPU threads a process.", low=1)
    timeout_s: float = key(
        600.0, "Seconds after which a collective that a rank did not join is an error.", above=0, high=LONGEST_S
    )

    @property
    def data(self) -> int:
        """Data-parallel size."""
        return self.world_size // (self.tensor * self.pipeline * self.context)

    @property
    def expert_tensor_size(self) -> int:
        """Tensor-parallel size of each expert."""
        return self.tensor if self.expert_tensor is None else self.expert_tensor

    @property
    def stages(self) -> int:
        """Pipeline stages, over all ranks."""
        return self.pipeline * self.virtual

    def token_multiple(self, alignment: int = 1) -> int:
        """What the tokens of a sequence must divide by: two chunks a context rank, in one share a tensor rank.

        Args:
            alignment: what each rank's tokens must divide by, as FP8's do (`FP8Config.alignment`).
        """
        chunks = lcm(2, alignment) * self.context if self.context > 1 else alignment
        return chunks * (self.tensor if self.sequence else 1)
