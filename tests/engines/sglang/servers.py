"""A real SGLang server over stand-ins for its kernels, and weights to give it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from megarl.config.model import ModelConfig
from megarl.config.schema import Recipe
from megarl.megatron.models import FAMILIES
from megarl.megatron.weights import ReadTensor
from megarl.rollout import Completion, Request, SamplingParams
from megarl.rollout.replica import Replica
from megarl.sync.bucket import TensorSpec, plan_buckets
from megarl.sync.digest import digest
from megarl.sync.transport import Sender
from megarl.sync.verify import first_mismatch, likeliest_cause
from tests.unit.megatron.hf import hf_model
from tests.unit.megatron.tiny import VOCAB, noisy_weights, tiny_recipe

PYTHON = os.environ.get("MEGARL_SGLANG_PYTHON", "")
"""Interpreter of the environment that has SGLang."""
STAND_INS = Path(__file__).parents[1] / "sglang_stand_ins"
TOLERANCE = 1e-4
"""Nats; between fp32 log-probs of two implementations, some 1e-5 apart."""
STOP = 1


def sglang_recipe(folder: Path) -> Recipe:
    """A model of a few thousand weights with a head of its own, served by one SGLang server."""
    recipe = tiny_recipe(temperature=0.7, head_dim=6, max_position_embeddings=4096, tie_embeddings=False)
    recipe.rollout.engine = "sglang"
    recipe.engine.python = PYTHON
    recipe.engine.start_timeout_s = 300
    # for 174,762 tokens
    recipe.engine.kv_cache_gib = 2**-5
    recipe.output_dir = str(folder)
    return recipe


def weights(model: ModelConfig, seed: int) -> ReadTensor:
    """Weights by Hugging Face name; another seed's differ in every tensor."""
    return noisy_weights(model, seed) if seed == 0 else lambda name: noisy_weights(model, seed)(name) + 0.05


def named_tensors(model: ModelConfig, read: ReadTensor) -> dict[str, Tensor]:
    """All tensors of the model."""
    return {name: read(name) for name, _, _ in FAMILIES[model.family].tensor_shapes(model, VOCAB)}


def update(
    replica: Replica,
    sender: Sender,
    tensors: Mapping[str, Tensor],
    version: int,
    *,
    given: Mapping[str, Tensor] | None = None,
) -> tuple[str | None, list[str]]:
    """A whole update, bucket by bucket.

    Args:
        replica: the server.
        sender: the transport.
        tensors: what is to arrive.
        version: of it.
        given: what is really sent; where it differs, a planted fault.

    Returns:
        What the digests say of the first tensor that did not arrive, and what got no weights.
    """
    given = tensors if given is None else given
    specs = _specs(given)
    replica.begin_update(sender.describe())
    for number, bucket in enumerate(plan_buckets(specs, 8192)):
        place = sender.write(number % sender.slots, bucket, [given[spec.name] for spec in bucket.specs])
        replica.receive(place, None)
    replica.finish_update(version)
    sent = {name: digest(tensor) for name, tensor in tensors.items()}
    (worker,) = replica.received_digests()
    mismatch = first_mismatch(_specs(tensors), sent, worker)
    said = None if mismatch is None else mismatch.sentence(likeliest_cause(mismatch, tensors.items(), {}))
    return said, replica.left_out()


def ask(replica: Replica, sample: int, *, tokens: int = 24, stop: int = STOP, prompt: Sequence[int] = ()) -> Completion:
    """One response to a prompt of some tokens."""
    prompt_ids = tuple(prompt) or (5, 3, 9, 2, 7)
    sampling = SamplingParams(temperature=0.7, max_new_tokens=tokens, stop_token_id=stop)
    return replica.generate(Request("a problem", sample, prompt_ids, "rl/3"), sampling)


def distance(completion: Completion, recipe: Recipe, read: ReadTensor) -> Tensor:
    """Of each token's log-prob from transformers' own in fp32 under these weights, in nats [T]."""
    network = hf_model(recipe.model, read, torch.float32)
    prompt = completion.request.prompt_ids
    with torch.no_grad():
        logits_TV = network(torch.tensor([[*prompt, *completion.token_ids]]), attention_mask=None).logits[0]
    log_probs_TV = (logits_TV[len(prompt) - 1 : -1] / recipe.rollout.temperature).log_softmax(-1)
    own_T = log_probs_TV.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
    return (torch.tensor(completion.log_probs) - own_T).abs()


def _specs(tensors: Mapping[str, Tensor]) -> list[TensorSpec]:
    return [TensorSpec(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()]
