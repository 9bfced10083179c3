"""Each family's own: what its attention has, and the scaling of its rotary frequencies."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from megarl.config.names import KNOWN_FAMILIES
from megarl.config.training import OptimizerConfig
from megarl.megatron.batch import on_targets, pad_batch
from megarl.megatron.distribution import Sampling
from megarl.megatron.model import build_model
from megarl.megatron.models import FAMILIES
from megarl.megatron.models.llama import hf_config
from megarl.megatron.policy import Policy
from megarl.megatron.rope import llama3_frequencies
from megarl.megatron.weights import load_weights
from megarl.megatron.world import Layout
from megarl.objectives import GRPO
from megarl.rollout import Request, SamplingParams
from megarl.rollout.build import build_engine
from megarl.sync.push import LocalSync
from tests.unit.megatron.hf import hf_model, tensor_names
from tests.unit.megatron.test_weights_hf import SCALED_ROPE
from tests.unit.megatron.tiny import VOCAB, noisy_weights, random_batch, tiny_recipe

MODELS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", **SCALED_ROPE},
    "llama untied": {"family": "llama", "tie_embeddings": False},
    "qwen2": {"family": "qwen2"},
    "qwen2 untied": {"family": "qwen2", "tie_embeddings": False},
    "qwen3": {"family": "qwen3", "head_dim": 16},
    "qwen3 untied": {"family": "qwen3", "tie_embeddings": False},
    "qwen3_moe": {"family": "qwen3_moe", "moe": {"num_experts": 4, "ffn_hidden_size": 20, "dense_layers": [0]}},
    "qwen3_moe untied": {"family": "qwen3_moe", "tie_embeddings": False, "moe": {"num_experts": 4}},
}
each_model = pytest.mark.parametrize("keys", MODELS.values(), ids=list(MODELS))
LLAMA_3_1 = {"rope_theta": 5e5, "rope_scaling": "llama3", "head_dim": 128}
LLAMA_3_2 = {**LLAMA_3_1, "rope_scaling_factor": 32.0, "head_dim": 64}


def test_the_recipe_knows_every_family() -> None:
    assert tuple(sorted(FAMILIES)) == KNOWN_FAMILIES
    assert {
        family.hf_config(tiny_recipe(family=name).model, VOCAB).model_type for name, family in FAMILIES.items()
    } == {*KNOWN_FAMILIES}


@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("llama", set()),
        ("qwen2", {"q_proj.bias", "k_proj.bias", "v_proj.bias"}),
        ("qwen3", {"q_norm.weight", "k_norm.weight"}),
    ],
)
def test_what_a_familys_attention_has(family: str, own: set[str]) -> None:
    names = tensor_names(tiny_recipe(family=family).model)
    found = {name.partition("layers.1.self_attn.")[2] for name in names} - {""}
    assert found == own | {f"{part}_proj.weight" for part in "qkvo"}


@pytest.mark.parametrize("name", ["self_attention.linear_qkv.bias", "self_attention.q_layernorm.weight", "mlp.router"])
def test_a_parameter_of_another_family_is_a_bug(name: str) -> None:
    model = tiny_recipe(family="llama").model
    with pytest.raises(KeyError, match=f"llama has no parameter decoder.layers.0.{name}"):
        FAMILIES["llama"].mapping(f"decoder.layers.0.{name}", model)


@pytest.mark.parametrize("keys", [LLAMA_3_1, LLAMA_3_2], ids=["3.1", "3.2"])
def test_scaled_frequencies_are_those_of_transformers(keys: dict[str, Any]) -> None:
    model = tiny_recipe(family="llama", **keys).model
    theirs, factor = ROPE_INIT_FUNCTIONS["llama3"](hf_config(model, VOCAB), torch.device("cpu"))
    plain = 1 / model.rope_theta ** (torch.arange(0, model.head_dim, 2) / model.head_dim)
    ours = llama3_frequencies(plain, model)
    assert factor == 1
    # a few roundings in fp32
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0.0)
    slowed = plain / ours
    assert slowed[0] == 1 and slowed[-1] == model.rope_scaling_factor
    assert ((slowed > 1.01) & (slowed < 0.99 * model.rope_scaling_factor)).any(), "none is in between"


@each_model
@torch.no_grad()
def test_logits_are_those_of_transformers(layout: Layout, keys: dict[str, Any]) -> None:
    """On logits of a spread of several: 1e-4 is fp32 rounding in two orders of summation, and no other network."""
    recipe = tiny_recipe(**keys)
    read, ids_BT = noisy_weights(recipe.model), random_batch(4).tokens_BT
    models = build_model(recipe.model, recipe.parallel, VOCAB)
    load_weights(models, recipe.model, VOCAB, read)
    positions_BT = torch.arange(ids_BT.shape[1]).expand_as(ids_BT)
    theirs: Tensor = hf_model(recipe.model, read, torch.float32)(ids_BT).logits
    assert theirs.std() > 1
    torch.testing.assert_close(models[0](ids_BT, positions_BT, None), theirs, rtol=0.0, atol=1e-4)


@each_model
def test_engine_and_trainer_agree_before_and_after_a_step(layout: Layout, keys: dict[str, Any]) -> None:
    """A step of GRPO on what the engine sampled: log-probs of both agree to fp32's rounding, and move."""
    recipe = tiny_recipe(temperature=0.8, **keys)
    policy, engine = Policy(recipe, layout, VOCAB), build_engine(recipe, VOCAB)
    policy.load(noisy_weights(recipe.model))
    policy.start_phase(OptimizerConfig(lr=1e-2, warmup_steps=0), 2)
    requests = [Request(f"p{row // 4}", row % 4, tuple(range(1, 4 + row // 4)), "rl/0") for row in range(8)]
    sampling = SamplingParams(temperature=0.8, max_new_tokens=10, stop_token_id=1)
    for version in (0, 1):
        LocalSync(policy, engine).push(version)
        completions = engine.generate(requests, sampling)
        prompts, responses = [r.prompt_ids for r in requests], [c.token_ids for c in completions]
        batch = pad_batch(prompts, responses, torch.device("cpu"))
        ours_BT = policy.log_probs(batch, 4)
        theirs_BT = on_targets(batch, [completion.log_probs for completion in completions])
        drift = (ours_BT - theirs_BT)[batch.mask_BT].abs()
        # ten roundings of 2^-24 on log-probs of up to 16
        assert drift.max() < 1e-5 and drift.mean() < 1e-6
        if version == 0:
            before = [completion.log_probs for completion in completions]
            advantages_B = torch.tensor([1.0, -1.0, 0.5, -0.5] * 2)[:, None]
            given = batch.with_rollout(advantages_B, old_log_probs_BT=ours_BT, rollout_log_probs_BT=theirs_BT)
            assert policy.update(given, GRPO(), micro_batch_size=4, sampling=Sampling(0.8)).grad_norm > 0
    assert before != [completion.log_probs for completion in completions]
