"""The planner against a trainer of one process: policy, critic, engine; and the constants that it repeats."""

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from megarl.config.model import ParallelConfig, TokenizerConfig
from megarl.config.moe import MoEConfig
from megarl.config.precision import PrecisionConfig
from megarl.config.schema import Recipe
from megarl.config.training import OptimizerConfig
from megarl.data.tokenizer import build_tokenizer, save_tokenizer
from megarl.megatron.critic import Critic
from megarl.megatron.log_probs import CHUNK_BYTES, GPU_CHUNK_TOKENS
from megarl.megatron.model import padded_vocabulary
from megarl.megatron.models import FAMILIES
from megarl.megatron.world import Layout as Place
from megarl.plan import activations, parameters
from megarl.plan.memory import Engine, cache_bytes
from megarl.plan.recipe import numerics_of, shape_of, vocabulary
from megarl.plan.shape import Batch, Layout, Numerics, Recompute
from megarl.plan.state import trained_state
from tests.parallel.plan_worker import MICRO, PROMPT, ROWS, TOKENS, VOCAB, held, measure, model_config

# Precision, and bytes a number of the output layer's weight that come and go without autograd: the gradient's sum in
# fp32; with the head in fp32 the weight's copy, and its gradient as the weight has it.
PRECISIONS = {
    "fp32": (PrecisionConfig(), 0),
    "bf16": (PrecisionConfig(dtype="bf16"), 4),
    "bf16, fp32 head": (PrecisionConfig(dtype="bf16", fp32_head=True), 4 + 2),
    "bf16, fp32 residual": (PrecisionConfig(dtype="bf16", fp32_residual=True), 4),
}


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("name", PRECISIONS)
def test_an_update_takes_what_the_plan_says(name: str, recompute: Recompute, layout: Place) -> None:
    precision, passing = PRECISIONS[name]
    recipe = Recipe(model=model_config(), parallel=ParallelConfig(recompute=recompute), precision=precision)
    shape, numerics = shape_of(recipe, VOCAB), numerics_of(recipe)
    batch = Batch(MICRO, TOKENS, TOKENS, trained=MICRO * (TOKENS + 1 - PROMPT), count=ROWS // MICRO)
    real = measure(1, parallel={}, recompute=recompute, precision=precision, place=layout)
    head = activations.head_bytes(shape, Layout(), numerics, batch) - passing * VOCAB * shape.hidden
    again = activations.recomputed_bytes(shape, Layout(), numerics, batch)
    saved = activations.in_flight(shape, Layout(), numerics, batch) + max(head, again)
    # the bound of docs/plan.md; the numbers of a loss are left out
    assert real.pop("saved") == pytest.approx(saved, rel=0.005)
    assert real.pop("sent") == 0
    assert real == vars(trained_state(shape, Layout(), numerics))


def test_a_critic_takes_what_the_plan_says(layout: Place) -> None:
    recipe = Recipe(model=model_config())
    critic = Critic(recipe, layout, VOCAB)
    critic.start_phase(OptimizerConfig(), 2)
    for param in critic.models[0].parameters():
        param.main_grad.fill_(1.0)
    critic.optimizer.step()
    state = trained_state(shape_of(recipe, VOCAB), Layout(), Numerics(), value_head=True)
    assert held(critic.models[0], critic.wrapped[0], critic.optimizer) == vars(state)


def test_the_engine_takes_what_the_plan_says() -> None:
    recipe = Recipe(model=model_config())
    shape = shape_of(recipe, VOCAB)
    model = AutoModelForCausalLM.from_config(FAMILIES["qwen2"].hf_config(recipe.model, VOCAB))
    assert sum(parameters.whole_model(shape).values()) == sum(weight.numel() for weight in model.parameters())
    with torch.no_grad():
        cache = model(input_ids=torch.zeros(3, 17, dtype=torch.int64), use_cache=True).past_key_values
    kept = sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))
    assert kept == cache_bytes(shape, Engine(rows=3, tokens=17, prompt=17))


def test_constants_are_those_of_the_trainer() -> None:
    assert (activations.CHUNK_BYTES, activations.GPU_CHUNK_TOKENS) == (CHUNK_BYTES, GPU_CHUNK_TOKENS)
    for tensor in (1, 2, 3, 8):
        assert parameters.padded_vocabulary(VOCAB, tensor) == padded_vocabulary(VOCAB, tensor)


def test_tokens_are_counted_as_the_tokenizer_counts_them(tmp_path: Path) -> None:
    config = TokenizerConfig(words=["\\boxed{", "so"])
    tokenizer = build_tokenizer(config)
    save_tokenizer(tokenizer, tmp_path)
    saved = TokenizerConfig(kind="hf", path=str(tmp_path))
    assert vocabulary(config) == vocabulary(saved) == len(tokenizer) == len(build_tokenizer(saved))


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_the_parameters_of_its_plan(family: str) -> None:
    experts = {"moe": MoEConfig(num_experts=4, ffn_hidden_size=56, dense_layers=[2])} if "moe" in family else {}
    config = model_config(family=family, **experts)
    shapes = [shape for _, shape, _ in FAMILIES[family].tensor_shapes(config, VOCAB)]
    assert sum(math.prod(shape) for shape in shapes) == sum(
        parameters.whole_model(shape_of(Recipe(model=config), VOCAB)).values()
    )
