"""A model of a few thousand weights, batches for it, and weights in which no tensor is all zeros or all ones."""

import hashlib
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from megarl.config.model import ModelConfig, ParallelConfig
from megarl.config.moe import MoEConfig
from megarl.config.precision import PrecisionConfig
from megarl.config.rollout import RolloutConfig
from megarl.config.schema import Recipe
from megarl.config.training import RLConfig
from megarl.megatron.batch import TrainBatch, pad_batch
from megarl.megatron.weights import ReadTensor, random_weights

# no power of two and odd, so that every tensor-parallel layout pads it
VOCAB = 13
ALPHABET = "0123456789+"
"""With padding and end token, VOCAB tokens."""
CONTEXT = 32
CPU = torch.device("cpu")
FP32 = PrecisionConfig()


def tiny_recipe(
    *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, precision: PrecisionConfig = FP32, **keys: Any
) -> Recipe:
    """Two layers, four query heads whose total width is not the hidden size.

    Args:
        temperature: of the rollout; likewise top_p and top_k.
        top_p: see there.
        top_k: see there.
        precision: the trainer's.
        keys: of the recipe's sections parallel and model, by their names; and rl.routing_replay.
    """
    rl = RLConfig(routing_replay=keys.pop("routing_replay", "none"))
    shape = {
        "num_layers": 2,
        "hidden_size": 24,
        "ffn_hidden_size": 40,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "head_dim": 8,
        "max_position_embeddings": CONTEXT,
        "embedding_init_std": 0.5,
    }
    if "moe" in keys:
        keys["moe"] = MoEConfig(**keys["moe"])
    parallel = {name: keys.pop(name) for name in [f.name for f in fields(ParallelConfig)] if name in keys}
    return Recipe(
        model=ModelConfig(**(shape | keys)),
        parallel=ParallelConfig(**({"timeout_s": 60} | parallel)),
        precision=precision,
        rollout=RolloutConfig(temperature=temperature, top_p=top_p, top_k=top_k),
        rl=rl,
    )


def noisy_weights(model: ModelConfig, seed: int = 0, vocab: int = VOCAB) -> ReadTensor:
    """The random initialisation with noise on every tensor, biases and norms too, keyed by its name."""
    read = random_weights(model, vocab, seed)

    def noisy(name: str) -> Tensor:
        tensor = read(name)
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")
        return tensor + 0.1 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(key))

    return noisy


def random_batch(rows: int, seed: int = 0, device: torch.device = CPU) -> TrainBatch:
    """Ragged prompts and responses of random tokens."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(longest: int) -> list[int]:
        count = int(torch.randint(1, longest + 1, (), generator=generator))
        return torch.randint(0, VOCAB, (count,), generator=generator).tolist()

    prompts, responses = [tokens(6) for _ in range(rows)], [tokens(9) for _ in range(rows)]
    # the last token of the vocabulary has padding beside it on the last tensor-parallel rank
    responses[0][0] = VOCAB - 1
    return pad_batch(prompts, responses, device)


def with_random_routing(batch: TrainBatch, model: ModelConfig, seed: int = 0) -> TrainBatch:
    """The batch with an engine's experts that no router chose, and gates that sum to 1; every fifth token has none."""
    generator = torch.Generator().manual_seed(seed)
    moe, shape = model.moe, (*batch.tokens_BT.shape, model.num_layers)
    experts = torch.rand(*shape, moe.num_experts, generator=generator).argsort(-1)[..., : moe.experts_per_token]
    experts[(torch.arange(shape[1]) % 5 == 4)[None] | (torch.arange(shape[1]) >= batch.lengths_B[:, None])] = -1
    weights = torch.rand(experts.shape, generator=generator).softmax(-1)
    return replace(batch, routed_experts_BTLK=experts.to(torch.int16), routed_weights_BTLK=weights)


def rl_batch(rows: int, log_probs_BT: Tensor, seed: int = 0, device: torch.device = CPU) -> TrainBatch:
    """`random_batch` with advantages, and old and reference log-probs near the policy's own."""
    batch = random_batch(rows, seed, device)
    generator = torch.Generator().manual_seed(seed + 1)
    advantages_B = torch.randn(rows, 1, generator=generator).to(device)

    def near() -> Tensor:
        return log_probs_BT + 0.3 * torch.randn(log_probs_BT.shape, generator=generator).to(device)

    return replace(
        batch,
        advantages_BT=advantages_B.expand(batch.mask_BT.shape),
        old_log_probs_BT=near(),
        reference_log_probs_BT=near(),
    )
